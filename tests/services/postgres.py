"""A real PostgreSQL server, with data in a temporary directory."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.missing import missing
from services.process import Restartable, free_port, started

PASSWORD = "turnback-pg-Secret'1"


class PostgresServer(Restartable):
    """A running server; user `turnback` owns the database `shop`."""

    @property
    def dsn(self) -> str:
        """How to connect, without the password."""
        return f"host=127.0.0.1 port={self.port} dbname=shop user=turnback"

    def connect(self, **parameters: Any) -> Any:
        """A connection that commits every statement."""
        import psycopg

        given = {"password": PASSWORD, "autocommit": True} | parameters
        return psycopg.connect(self.dsn, **given)

    def run(self, *statements: str) -> None:
        """Run statements, each committed at once."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query, by a connection of its own."""
        with self.connect() as connection:
            return list(connection.execute(sql).fetchall())

    def prepared(self) -> list[str]:
        """The names of all prepared transactions."""
        return [gid for (gid,) in self.query("SELECT gid FROM pg_prepared_xacts ORDER BY gid")]

    def roll_back_prepared(self) -> None:
        """Roll back all prepared transactions, whoever they belong to."""
        self.run(*(f"ROLLBACK PREPARED '{name}'" for name in self.prepared()))

    def crash(self) -> None:
        """End the server as a crash of its machine would, without a checkpoint of its own."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(20)

    def is_ready(self) -> bool:
        import psycopg

        try:
            where = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
            psycopg.connect(where, password=PASSWORD, connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True


@contextmanager
def postgres_server(*, max_prepared: int = 200) -> Iterator[PostgresServer]:
    """Run a server; skips the test when PostgreSQL is missing, unless CI=true."""
    programs, port = _programs(), free_port()
    with tempfile.TemporaryDirectory(
        prefix="turnback-postgres-", ignore_cleanup_errors=True
    ) as name:
        directory = Path(name)
        prefix = _as_postgres(directory)
        data, password = directory / "data", directory / "password"
        password.write_text(PASSWORD)
        if prefix:
            shutil.chown(password, "postgres")
        subprocess.run(
            [
                *(*prefix, programs / "initdb", "-D", data, "-U", "postgres", "--no-sync"),
                *("-A", "scram-sha-256", "--pwfile", password, "-E", "UTF8", "--locale", "C"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_prepared_transactions": max_prepared,
            "shared_buffers": "64MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*prefix, programs / "postgres", "-D", data, *options]
        with started(PostgresServer(port, directory, command)) as server:
            _create(port)
            yield server


def _create(port: int) -> None:
    import psycopg

    where = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    with psycopg.connect(where, password=PASSWORD, autocommit=True) as connection:
        quoted = PASSWORD.replace("'", "''")
        connection.execute(f"CREATE ROLE turnback LOGIN CREATEROLE PASSWORD '{quoted}'")
        connection.execute("CREATE DATABASE shop OWNER turnback")


def _programs() -> Path:
    found = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found is None and not installed:
        missing("PostgreSQL is not installed")
    return Path(found).parent if found else installed[-1].parent


def _as_postgres(directory: Path) -> list[str]:
    """What to put in front of commands: PostgreSQL does not run as root."""
    if os.getuid() != 0:
        return []
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        missing("there is no user postgres, and PostgreSQL does not run as root")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
