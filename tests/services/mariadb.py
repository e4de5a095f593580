"""A real MariaDB server, with data in a temporary directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.missing import missing
from services.process import free_port, running, stop

PASSWORD = "turnback-maria-Secret'1"


@dataclass
class MariaDbServer:
    """A running server; user `turnback` may do everything in the database `shop`."""

    port: int
    directory: Path
    process: subprocess.Popen[bytes]
    command: list[str]

    @property
    def parameters(self) -> dict[str, Any]:
        """How to connect, without the password."""
        return {"host": "127.0.0.1", "port": self.port, "database": "shop", "user": "turnback"}

    def connect(self, **parameters: Any) -> Any:
        """A connection that commits every statement."""
        import pymysql

        given = self.parameters | {"password": PASSWORD, "autocommit": True} | parameters
        return pymysql.connect(**given)

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

    def crash(self) -> None:
        """End the server as a crash of its machine would."""
        self.process.kill()
        self.process.wait(20)

    def start(self) -> None:
        """Start it again on the same data and port."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while not _ready(self.port):
            if time.monotonic() > end:
                raise TimeoutError((self.directory / "log").read_text()[-2000:])
            time.sleep(0.05)


@contextmanager
def mariadb_server() -> Iterator[MariaDbServer]:
    """Run a server; skips the test when MariaDB is missing, unless CI=true."""
    programs = [shutil.which("mariadb-install-db"), shutil.which("mariadbd")]
    if None in programs:
        missing("MariaDB is not installed")
    install, daemon = map(str, programs)
    directory = Path(tempfile.mkdtemp(prefix="turnback-mariadb-"))
    user = ["--user=mysql"] if os.getuid() == 0 else []
    if user:
        shutil.chown(directory, "mysql", "mysql")
    data, port = directory / "data", free_port()
    common = ["--no-defaults", f"--datadir={data}", f"--tmpdir={directory}", *user]
    setup = directory / "setup.sql"
    quoted = PASSWORD.replace("'", "''")
    setup.write_text(
        "CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;\n"
        f"CREATE USER IF NOT EXISTS turnback@'127.0.0.1' IDENTIFIED BY '{quoted}';\n"
        "GRANT ALL ON shop.* TO turnback@'127.0.0.1' WITH GRANT OPTION;\n"
        "GRANT CREATE USER, RELOAD ON *.* TO turnback@'127.0.0.1';\n"
    )
    try:
        subprocess.run(
            [install, *common, "--skip-test-db", "--auth-root-authentication-method=normal"],
            check=True,
            capture_output=True,
            timeout=120,
        )
        command = [
            *(daemon, *common, f"--port={port}", "--bind-address=127.0.0.1"),
            *(f"--socket={directory}/socket", f"--pid-file={directory}/pid"),
            *(f"--init-file={setup}", "--innodb-buffer-pool-size=64M", "--skip-name-resolve"),
        ]
        with running(command, ready=lambda: _ready(port), log=directory / "log") as process:
            server = MariaDbServer(port, directory, process, command)
            yield server
            stop(server.process)  # it may have been started again
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _ready(port: int) -> bool:
    import pymysql

    try:
        pymysql.connect(
            host="127.0.0.1", port=port, user="turnback", password=PASSWORD, database="shop",
            connect_timeout=2,
        ).close()  # fmt: skip
    except pymysql.MySQLError:
        return False
    return True
