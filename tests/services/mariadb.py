"""A real MariaDB server, with data in a temporary directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.missing import missing
from services.process import Restartable, free_port, started

PASSWORD = "turnback-maria-Secret'1"


class MariaDbServer(Restartable):
    """A running server; user `turnback` may do everything in the database `shop`."""

    @property
    def parameters(self) -> dict[str, Any]:
        """How to connect, without the password."""
        return {"host": "127.0.0.1", "port": self.port, "database": "shop", "user": "turnback"}

    def connect(self, **parameters: Any) -> Any:
        """A connection that commits every statement."""
        import pymysql

        given = self.parameters | {"password": PASSWORD, "autocommit": True} | parameters
        return pymysql.connect(**given, ssl_disabled=True)  # reading certificates takes a while

    def run(self, *statements: str) -> None:
        """Run statements, each committed at once."""
        self.query(*statements)

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """All rows of the last statement, by a connection of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def prepared(self) -> list[str]:
        """The names of all prepared transactions."""
        return sorted(
            data if isinstance(data, str) else bytes(data).decode()
            for _, _, _, data in self.query("XA RECOVER")
        )

    def roll_back_prepared(self) -> None:
        """Roll back all prepared transactions, whoever they belong to."""
        for _, length, _, data in self.query("XA RECOVER"):
            name = data if isinstance(data, str) else bytes(data).decode()
            self.run(f"XA ROLLBACK '{name[:length]}','{name[length:]}'")

    def is_ready(self) -> bool:
        import pymysql

        try:
            self.connect(connect_timeout=2).close()
        except pymysql.MySQLError:
            return False
        return True


@contextmanager
def mariadb_server() -> Iterator[MariaDbServer]:
    """Run a server; skips the test when MariaDB is missing, unless CI=true."""
    programs = [shutil.which("mariadb-install-db"), shutil.which("mariadbd")]
    if None in programs:
        missing("MariaDB is not installed")
    install, daemon = map(str, programs)
    user = ["--user=mysql"] if os.getuid() == 0 else []
    port = free_port()
    with tempfile.TemporaryDirectory(
        prefix="turnback-mariadb-", ignore_cleanup_errors=True
    ) as name:
        directory = Path(name)
        if user:
            shutil.chown(directory, "mysql", "mysql")
        common = ["--no-defaults", f"--datadir={directory}/data", f"--tmpdir={directory}", *user]
        subprocess.run(
            [install, *common, "--skip-test-db", "--auth-root-authentication-method=normal"],
            check=True,
            capture_output=True,
            timeout=120,
        )
        command = [
            *(daemon, *common, f"--port={port}", "--bind-address=127.0.0.1"),
            *(f"--socket={directory}/socket", f"--pid-file={directory}/pid"),
            *(f"--init-file={_setup(directory)}", "--innodb-buffer-pool-size=64M"),
            "--skip-name-resolve",
        ]
        with started(MariaDbServer(port, directory, command)) as server:
            yield server


def _setup(directory: Path) -> Path:
    """What the server does whenever it starts."""
    quoted = PASSWORD.replace("'", "''")
    setup = directory / "setup.sql"
    setup.write_text(
        "CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;\n"
        f"CREATE USER IF NOT EXISTS turnback@'127.0.0.1' IDENTIFIED BY '{quoted}';\n"
        "GRANT ALL ON shop.* TO turnback@'127.0.0.1' WITH GRANT OPTION;\n"
        "GRANT CREATE USER, RELOAD ON *.* TO turnback@'127.0.0.1';\n"
    )
    return setup
