"""A real RabbitMQ server with streams, with data in a temporary directory."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rstream import AMQPMessage, Producer
from rstream.client import Client
from rstream.connection import ConnectionClosed
from rstream.exceptions import ServerError

from services.missing import missing
from services.process import Restartable, accepts, free_port, started

PROGRAMS = Path("/usr/lib/rabbitmq/bin")
USER, PASSWORD = "turnback", "turnback-rabbit-secret"
_names = count(1)


def _run(session: Coroutine[Any, Any, Any]) -> Any:
    """Run a session in a thread: a browser of other tests keeps an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, session).result()


@dataclass
class RabbitMQServer(Restartable):
    """A running server; `port` is that of streams, and user `turnback` may do anything."""

    environment: dict[str, str]
    prefix: Sequence[str]

    def is_ready(self) -> bool:
        if not accepts(self.port):
            return False
        try:
            return not self.ask(lambda client: client.stream_exists("no-such-stream"))
        except (OSError, TimeoutError, ServerError, ConnectionClosed):
            return False

    def start(self) -> None:
        self.command = [*self.prefix, "env", *self._variables(), PROGRAMS / "rabbitmq-server"]
        super().start()

    def crash(self) -> None:
        """End the server as a crash of its machine would: the Erlang VM is a child of a script."""
        for number in _below(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait(20)

    def ask(
        self, question: Callable[[Any], Awaitable[Any]], user: str = USER, password: str = PASSWORD
    ) -> Any:
        """Ask something of a client that is logged in."""

        async def session() -> Any:
            client = Client("127.0.0.1", self.port, frame_max=1 << 20, heartbeat=0)
            await client.start()
            try:
                await client.authenticate("/", user, password)
                return await question(client)
            finally:
                await client.close()

        return _run(session())

    def create_stream(self, **arguments: Any) -> str:
        """Create a stream and return its name."""
        name = f"stream-{next(_names)}"
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.ask(lambda client: client.create_stream(name, given))
        return name

    def delete_stream(self, name: str) -> None:
        self.ask(lambda client: client.delete_stream(name))

    def make_anew(self, name: str) -> None:
        """Delete a stream and create another one of the same name."""
        self.delete_stream(name)
        self.ask(lambda client: client.create_stream(name, {}))

    def write(self, stream: str, values: Sequence[str | bytes], **properties: Any) -> None:
        """Write messages, and wait until the server has them."""
        texts = [v.encode() if isinstance(v, str) else v for v in values]
        *messages, last = [AMQPMessage(body=text, **properties) for text in texts]

        async def session() -> None:
            where = {"host": "127.0.0.1", "port": self.port}
            async with Producer(**where, username=USER, password=PASSWORD) as producer:
                for at in range(0, len(messages), 1000):
                    await producer.send_batch(stream, messages[at : at + 1000])
                await producer.send_wait(stream, last)

        _run(session())

    def _variables(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.environment.items()]


@contextmanager
def rabbitmq_server() -> Iterator[RabbitMQServer]:
    """Run a server; skips the test when RabbitMQ is missing, unless CI=true."""
    if not (PROGRAMS / "rabbitmq-server").is_file():
        missing("RabbitMQ is not installed")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="turnback-rabbit-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "plugins").write_text("[rabbitmq_stream].")
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{free_port()}\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{port}\n"
            f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {port}\n"
            f"default_user = {USER}\ndefault_pass = {PASSWORD}\n"
            "default_user_tags.administrator = true\n"
        )
        environment = {
            "RABBITMQ_NODENAME": f"turnback{port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),  # its own, which ends with it
            "HOME": name,
        }
        server = RabbitMQServer(port, directory, [], environment, _as_rabbitmq(directory))
        with started(server):
            yield server
        _end_epmd(environment)


def _as_rabbitmq(directory: Path) -> list[str]:
    """What to put in front of commands: its scripts do not run as root."""
    if os.getuid() != 0:
        return []
    try:
        user = pwd.getpwnam("rabbitmq")
    except KeyError:
        missing("there is no user rabbitmq, and RabbitMQ does not run as root")
    for path in (directory, *directory.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _below(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, parent = (
                int(path.parent.name),
                int(path.read_text().rsplit(")", 1)[1].split()[1]),
            )
            if parent == pid:
                found += _below(number)
    return found


def _end_epmd(environment: dict[str, str]) -> None:
    """End the daemon that knows the ports of Erlang's nodes; it leaves its parents."""
    wanted = f"ERL_EPMD_PORT={environment['ERL_EPMD_PORT']}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
