"""A Redis server in memory: what `RedisSink` uses of it, and no more.

Strings, hashes, times to live and scripts, each command in one step, and a script as one. The
client library talks to it in its own protocol, over a socket that is none. Scripts are the sink's
own text, see `lua`. `tests/systems/redis/test_simulated_redis.py` holds it against a real server.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simulation.lua import LuaError, compiled

T = TypeVar("T")
Hash = dict[bytes, bytes]
_READS = frozenset((b"GET", b"HGET", b"HGETALL", b"EXISTS", b"PTTL", b"SCRIPT"))
_HANDSHAKE = frozenset((b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"PING"))
_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class ErrorReplyError(Exception):
    """What the server answers instead; it begins with a code."""


class Status(str):
    """A short answer, such as OK."""


class Network:
    """How clients reach a server: here at once and always."""

    def process(self) -> Any:
        """Who is calling."""

    def now_ms(self) -> float:
        return 0.0

    def call(self, what: str, action: Callable[[], T], *, writes: bool) -> T:
        return action()

    def is_late(self) -> bool:
        """Whether what is being done was sent long ago, by somebody who has given up."""
        return False

    def reads_on(self) -> bool:
        """Whether the server does what a lost connection had sent behind a command."""
        return True

    def see(self, server: Server, process: Any, key: bytes) -> None:
        """Called when a key is about to be written."""


@dataclass
class Server:
    """The server, and everything in its one database."""

    network: Network
    data: dict[bytes, bytes | Hash] = field(default_factory=dict)
    ends: dict[bytes, float] = field(default_factory=dict)
    """When keys go away, in milliseconds."""
    scripts: dict[bytes, str] = field(default_factory=dict)
    sockets: list[Socket] = field(default_factory=list)

    def restart(self) -> None:
        """Every write is in its append-only file; scripts are not."""
        self.scripts.clear()
        for connection in list(self.sockets):
            connection.end()

    def run(self, command: Sequence[bytes], process: Any = None) -> Any:
        """The answer to a command."""
        name = command[0].upper().decode()
        method = getattr(self, f"_{name.lower()}", None)
        if method is None:
            raise ErrorReplyError(f"ERR unknown command '{name}'")
        if name == "EVALSHA":
            return self._evalsha(process, *command[1:])
        if name in ("SET", "DEL", "HSET", "PEXPIRE"):
            self.network.see(self, process, command[1])
        return method(*command[1:])

    # -- commands

    def _ping(self) -> Any:
        return Status("PONG")

    def _select(self, number: bytes) -> Any:
        return Status("OK")

    def _client(self, what: bytes, *arguments: bytes) -> Any:
        if what.upper() == b"SETINFO":
            return Status("OK")
        raise ErrorReplyError(f"ERR unknown subcommand '{what.decode()}'. Try CLIENT HELP.")

    def _flushall(self) -> Any:
        self.data.clear()
        self.ends.clear()
        return Status("OK")

    def _get(self, key: bytes) -> Any:
        found = self._at(key)
        if isinstance(found, dict):
            raise ErrorReplyError(_WRONG_TYPE)
        return found

    def _set(self, key: bytes, value: bytes) -> Any:
        self.data[key] = value
        self.ends.pop(key, None)
        return Status("OK")

    def _del(self, *keys: bytes) -> Any:
        there = [key for key in keys if self._at(key) is not None]
        for key in there:
            del self.data[key]
            self.ends.pop(key, None)
        return len(there)

    def _exists(self, *keys: bytes) -> Any:
        return sum(self._at(key) is not None for key in keys)

    def _hash(self, key: bytes) -> Hash:
        found = self._at(key)
        if isinstance(found, bytes):
            raise ErrorReplyError(_WRONG_TYPE)
        return {} if found is None else found

    def _hget(self, key: bytes, name: bytes) -> Any:
        return self._hash(key).get(name)

    def _hgetall(self, key: bytes) -> Any:
        return dict(self._hash(key))

    def _hset(self, key: bytes, *pairs: bytes) -> Any:
        if not pairs or len(pairs) % 2:
            raise ErrorReplyError("ERR wrong number of arguments for 'hset' command")
        fields = dict(self._hash(key))
        new = set(pairs[::2]) - fields.keys()
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        self.data[key] = fields
        return len(new)

    def _pexpire(self, key: bytes, ms: bytes) -> Any:
        if self._at(key) is None:
            return 0
        self.ends[key] = self.network.now_ms() + int(ms)
        return 1

    def _pttl(self, key: bytes) -> Any:
        if self._at(key) is None:
            return -2
        return int(self.ends[key] - self.network.now_ms()) if key in self.ends else -1

    def _script(self, what: bytes, *arguments: bytes) -> Any:
        if what.upper() == b"EXISTS":
            return [int(sha in self.scripts) for sha in arguments]
        if what.upper() == b"FLUSH":
            self.scripts.clear()
            return Status("OK")
        if what.upper() == b"LOAD":
            sha = hashlib.sha1(arguments[0]).hexdigest().encode()
            self.scripts[sha] = arguments[0].decode()
            return sha
        raise ErrorReplyError(f"ERR unknown subcommand '{what.decode()}'. Try SCRIPT HELP.")

    def _evalsha(self, process: Any, sha: bytes, count: bytes, *arguments: bytes) -> Any:
        if sha not in self.scripts:
            raise ErrorReplyError("NOSCRIPT No matching script. Please use EVAL.")
        keys, rest = arguments[: int(count)], arguments[int(count) :]

        def call(*command: Any) -> Any:
            given = [part if isinstance(part, bytes) else b"%d" % part for part in command]
            found = self.run(given, process)
            return False if found is None else found

        try:
            found = compiled(self.scripts[sha])(keys, rest, call)
        except LuaError as error:
            raise ErrorReplyError(f"ERR {error}") from error
        if isinstance(found, bool):
            return 1 if found else None
        return found

    # -- internals

    def _at(self, key: bytes) -> bytes | Hash | None:
        if key in self.ends and self.ends[key] <= self.network.now_ms():
            del self.ends[key]
            self.data.pop(key, None)
        return self.data.get(key)


class Socket:
    """A connection, as the client library has it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._process = server.network.process()
        self._sent = b""
        self._answers = bytearray()
        self._is_over = False
        self._protocol = 2
        self._timeout: float | None = None
        server.sockets.append(self)

    def sendall(self, data: bytes) -> None:
        if self._is_over:
            raise BrokenPipeError("the server has closed the connection")
        self._sent += data
        commands, self._sent = parsed(self._sent)
        for place, command in enumerate(commands):
            try:
                self._answers += encoded(
                    self._handled(command, commands[place + 1 :]), self._protocol
                )
            except BaseException:
                self.end()
                raise

    def _handled(self, command: Sequence[bytes], behind: Sequence[Sequence[bytes]]) -> Any:
        """What the server answers; if its answer is lost, it may read on nevertheless."""
        name, network = command[0].upper(), self._server.network
        if name == b"HELLO":
            self._protocol = int(command[1])
            return {b"server": b"redis", b"version": b"7.0.0", b"proto": self._protocol}
        if name in _HANDSHAKE:
            return self._answer(command)
        was_read = False

        def run() -> Any:
            nonlocal was_read
            was_read = True
            found = self._answer(command)
            if network.is_late():
                self._read_on(behind)
            return found

        what = " ".join(part.decode(errors="replace") for part in command[:6])
        try:
            return network.call(f"redis: {what}", run, writes=name not in _READS)
        except ErrorReplyError as error:
            return error
        except BaseException:
            if was_read:
                self._read_on(behind)
            raise

    def _answer(self, command: Sequence[bytes]) -> Any:
        try:
            return self._server.run(command, self._process)
        except ErrorReplyError as error:
            return error

    def _read_on(self, commands: Sequence[Sequence[bytes]]) -> None:
        for command in commands:
            if not self._server.network.reads_on():
                return
            self._answer(command)

    def recv(self, size: int) -> bytes:
        if self._answers:
            found = bytes(self._answers[:size])
            del self._answers[:size]
            return found
        if self._is_over:
            return b""
        if self._timeout == 0:
            raise BlockingIOError(11, "nothing there")
        raise TimeoutError("no answer")

    def end(self) -> None:
        """The server closes it."""
        self._is_over = True
        if self in self._server.sockets:
            self._server.sockets.remove(self)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def shutdown(self, how: int) -> None:
        self.end()

    def close(self) -> None:
        self.end()

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 6379


def parsed(data: bytes) -> tuple[list[list[bytes]], bytes]:
    """The commands that are complete, and what is left."""
    commands: list[list[bytes]] = []
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return commands, data[at:]
        place, parts = end + 2, []
        for _ in range(int(data[at + 1 : end])):
            end = data.find(b"\r\n", place)
            if end < 0:
                return commands, data[at:]
            length = int(data[place + 1 : end])
            place = end + 2 + length + 2
            if len(data) < place:
                return commands, data[at:]
            parts.append(data[end + 2 : place - 2])
        commands.append(parts)
        at = place


def encoded(answer: Any, protocol: int) -> bytes:
    """An answer in a version of the protocol."""
    if answer is None:
        return b"_\r\n" if protocol == 3 else b"$-1\r\n"
    if isinstance(answer, Status):
        return f"+{answer}\r\n".encode()
    if isinstance(answer, ErrorReplyError):
        return f"-{answer}\r\n".encode()
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, bytes):
        return b"$%d\r\n%s\r\n" % (len(answer), answer)
    if isinstance(answer, dict):
        items = [part for pair in answer.items() for part in pair]
        head = b"%%%d\r\n" % len(answer) if protocol == 3 else b"*%d\r\n" % len(items)
    else:
        items = list(answer)
        head = b"*%d\r\n" % len(items)
    return head + b"".join(encoded(item, protocol) for item in items)


def connector(server: Server) -> Callable[[Any], socket.socket]:
    """What `redis.connection.Connection._connect` is to be replaced with."""

    def connect(connection: Any) -> Any:
        return server.network.call("redis: connect", lambda: Socket(server), writes=False)

    return connect
