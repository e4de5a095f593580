"""Streams of RabbitMQ, asked one question after the other: rstream's event loop stays in here."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from turnback.core.event_loop import EventLoop
from turnback.core.extras import require
from turnback.errors import ConfigurationError, SourceError

_APPLICATION_PROPERTIES = 0x74
_DATA = 0x75
_SEQUENCE = 0x76
_VALUE = 0x77
_BYTES_OR_TEXT = {0xA0: 1, 0xA1: 1, 0xB0: 4, 0xB1: 4}
"""How many bytes tell the length of binary data and text, by what stands before them."""
_LISTS_AND_MAPS = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}
_EMPTY_LIST = 0x45


def body_of(message: bytes) -> bytes:
    """What a message carries: its data, or the text that is its value; else `ValueError`.

    Bytes that are no message of AMQP are returned as they are: some clients write them.
    """
    if message[:3] == b"\x00\x53\x75" and message[3] == 0xA0 and len(message) == message[4] + 5:
        return message[5:]  # most messages are short, and nothing but data
    if message[:2] != b"\x00\x53":
        return message
    found = [part for code, part in _sections(message) if code in (_DATA, _VALUE)]
    if len(found) == 1:
        return found[0]
    return b"".join(found)


def properties_of(message: bytes) -> list[tuple[str, bytes]]:
    """The application properties of a message, as text and bytes."""
    from rstream.amqp import amqp_decoder

    if message[:2] != b"\x00\x53":
        return []
    known = amqp_decoder(message).application_properties or {}
    return [(_text(key), _bytes(value)) for key, value in known.items()]


def _sections(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The sections of a message that are binary data or text, each with its code."""
    at = 0
    while at < len(message):
        if message[at : at + 2] != b"\x00\x53" or at + 4 > len(message):
            raise ValueError("it is not an AMQP 1.0 message")
        code = message[at + 2]
        kind = message[at + 3]
        at += 4
        if kind == _EMPTY_LIST:
            continue
        width = _BYTES_OR_TEXT.get(kind) or _LISTS_AND_MAPS.get(kind)
        if width is None or (kind in _LISTS_AND_MAPS and code in (_SEQUENCE, _VALUE)):
            raise ValueError("its body is neither bytes nor text")
        size = int.from_bytes(message[at : at + width], "big")
        at += width + size
        if kind in _BYTES_OR_TEXT:
            yield code, message[at - size : at]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
SILENCE_S = 30.0
"""How long records that are known to be there may take to come."""
_LOOK_S = 0.2
_CREDIT = 10
"""How many chunks the server may send ahead."""
_ID = 0  # a connection has one subscription at a time
FIRST = ("FIRST", None)
LAST = ("LAST", None)
"""Where to look: at the first chunk of a stream, and at the last."""
Place = tuple[str, int | None]


@dataclass(frozen=True)
class RabbitMQServer:
    """Where a server of RabbitMQ is, and who asks it."""

    host: str
    port: int
    virtual_host: str
    user: str
    password: str = field(repr=False)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Chunk(NamedTuple):
    """Messages that were written together; `end` is the offset after the last one.

    The timestamp is in milliseconds since 1970, the frame what the server has sent.
    """

    first: int
    end: int
    timestamp: int
    frame: Any

    def messages(self) -> list[bytes]:
        messages: list[bytes] = self.frame.get_messages()
        return messages


class RabbitMQClient:
    """Connections to the servers of a cluster, which outlive the questions.

    The first server tells which one has which stream. `name` is who asks, for messages.
    """

    def __init__(self, server: RabbitMQServer, name: str) -> None:
        require("rstream", "rabbitmq", "RabbitMQSource")
        self._server = server
        self._name = name
        logging.getLogger("rstream.client").setLevel(logging.INFO)  # it would log the password
        self._loop = EventLoop("turnback-rabbitmq", lambda what: _LOG.debug("%s", what))
        self._clients: dict[tuple[str, int], Any] = {}
        self._leaders: dict[str, Any] = {}

    def look(self, stream: str, place: Place) -> Chunk | None:
        """The chunk at a place, as far as there is one now."""
        return self._run(self._look(stream, place), stream)

    def end(self, stream: str) -> int:
        """The offset after the last message."""
        last = self.last(stream)
        return 0 if last is None else last.end

    def last(self, stream: str) -> Chunk | None:
        """The last chunk; None if the stream is empty."""
        for _ in range(50):
            last = self.look(stream, LAST)
            if last is not None:
                return last
            if self.look(stream, FIRST) is None:
                return None
            # The last chunk is about to be confirmed by the replicas.
            self._run(asyncio.sleep(_LOOK_S), stream)
        raise SourceError(f"{self._name}: RabbitMQ does not report the end of stream {stream!r}")

    def chunks(self, stream: str, start: int) -> Generator[Chunk]:
        """Chunks from the one on that holds an offset; ask only for as many as there are."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        client = self._run(self._subscribe(stream, ("OFFSET", start), queue, _CREDIT), stream)
        try:
            while True:
                yield _chunk(self._run(self._next(client, queue), stream))
        finally:
            if client.is_connection_alive():
                self._run(self._unsubscribe(client), stream)

    def close(self) -> None:
        for address in list(self._clients):
            client = self._clients.pop(address)
            if client.is_connection_alive():
                self._loop.run(client.close())
        self._loop.close()

    # -- inside the loop

    async def _look(self, stream: str, place: Place) -> Chunk | None:
        """Subscribe and end it: the server sends a chunk that is there before its second answer."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        client = await self._subscribe(stream, place, queue, 1)
        await self._unsubscribe(client)
        return None if queue.empty() else _chunk(queue.get_nowait())

    async def _subscribe(
        self, stream: str, place: Place, queue: asyncio.Queue[Any], credit: int
    ) -> Any:
        from rstream import schema
        from rstream.constants import OffsetType

        client, (kind, value) = await self._leader(stream), place

        async def take(frame: Any) -> None:
            queue.put_nowait(frame)

        # The client hands frames over through a queue and a task of its own, in order.
        client.add_handler(schema.Deliver, take, name=str(_ID))
        await client.run_queue_listener_task(_ID, take)
        where = schema.OffsetSpec.from_params(OffsetType[kind], value)
        await client.subscribe(stream, _ID, where, initial_credit=credit)
        return client

    async def _unsubscribe(self, client: Any) -> None:
        from rstream import schema

        await client.unsubscribe(_ID)
        for _ in range(3):  # let the client's task hand over what has come
            await asyncio.sleep(0)
        client.remove_handler(schema.Deliver, name=str(_ID))
        await client.stop_queue_listener_task(_ID)

    async def _next(self, client: Any, queue: asyncio.Queue[Any]) -> Any:
        waited = 0.0
        while True:
            try:
                frame = await asyncio.wait_for(queue.get(), _LOOK_S)
            except TimeoutError:
                waited += _LOOK_S
                if not client.is_connection_alive():
                    raise ConnectionError("the connection was closed") from None
                if waited > SILENCE_S:
                    raise
                continue
            await client.credit(_ID, 1)
            return frame

    async def _leader(self, stream: str) -> Any:
        """A connection to the server that writes a stream."""
        if stream not in self._leaders:
            first = await self._client(self._server.host, self._server.port)
            self._leaders[stream], _ = await first.query_leader_and_replicas(stream)
        leader = self._leaders[stream]
        return await self._client(leader.host, leader.port)

    async def _client(self, host: str, port: int) -> Any:
        from rstream.client import Client

        client = self._clients.get((host, port))
        if client is not None and client.is_connection_alive():
            return client
        # No heartbeats: the next question notices a closed connection, and opens another one.
        client = Client(
            *(host, port),
            frame_max=1 << 20,
            heartbeat=0,
            connection_name=f"turnback {os.getpid()}",
            connection_closed_handler=lambda _: None,
        )
        await client.start()
        server = self._server
        await client.authenticate(server.virtual_host, server.user, server.password)
        self._clients[host, port] = client
        return client

    def _run(self, question: Coroutine[Any, Any, _T], stream: str) -> _T:
        from rstream import exceptions
        from rstream.connection import ConnectionClosed

        where = f"RabbitMQ at {self._server.address}"
        try:
            return self._loop.run(question)
        except exceptions.StreamDoesNotExist:
            self._leaders.pop(stream, None)
            raise ConfigurationError(
                f"{self._name}: cannot find stream {stream!r} in virtual host "
                f"{self._server.virtual_host!r} of {where}. Create it first, or check the name; "
                "a queue is a stream only if it was declared as one"
            ) from None
        except (
            exceptions.AuthenticationFailure,
            exceptions.SASLError,
            exceptions.SASLAuthenticationFailureLoopback,
        ):
            raise ConfigurationError(
                f"{self._name}: {where} rejected the login of user {self._server.user!r}; check "
                "set_user_name and set_password (user guest can only log in from the server "
                "itself)"
            ) from None
        except (exceptions.AccessRefused, exceptions.VirtualHostAccessFailure):
            raise ConfigurationError(
                f"{self._name}: user {self._server.user!r} of {where} is not allowed to read "
                f"{stream!r} in virtual host {self._server.virtual_host!r}; check "
                "set_virtual_host, and give the user the permission to read"
            ) from None
        except (
            *(OSError, TimeoutError, ConnectionClosed),
            *(exceptions.ServerError, exceptions.ClientError),
        ) as error:
            self._leaders.pop(stream, None)
            self._clients.clear()
            what = str(error) or type(error).__name__
            raise SourceError(
                f"{self._name}: {where} does not respond for {stream!r}: {what}. Check that it "
                "is running with the plugin rabbitmq_stream, and that the port is the one for "
                "streams (5552)"
            ) from None


def _chunk(frame: Any) -> Chunk:
    first = frame.chunk_first_offset
    return Chunk(first, first + frame.num_records, frame.timestamp, frame)


_clients: dict[tuple[int, RabbitMQServer], RabbitMQClient] = {}


def shared_client(server: RabbitMQServer, name: str) -> RabbitMQClient:
    """The client of this process, so that not every task has to log in."""
    key = os.getpid(), server
    if key not in _clients:
        _clients[key] = RabbitMQClient(server, name)
    return _clients[key]
