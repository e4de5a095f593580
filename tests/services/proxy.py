"""A TCP proxy that misbehaves on demand: replies lost, replies late."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards connections to a port of 127.0.0.1.

    `lose_replies(n)` lets the next n requests through and cuts the connection instead of
    answering. `delay` holds back every answer for so many seconds.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._to_lose = 0
        self._stopped = threading.Event()
        self.lost = 0
        self.delay = 0.0
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_replies(self, count: int) -> None:
        """Lose the replies to the next requests."""
        with self._lock:
            self._to_lose = count

    def close(self) -> None:
        """Stop listening; connections end with their peers."""
        self._stopped.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, replies in ((client, server, False), (server, client, True)):
                arguments = (source, sink, replies)
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if replies:
                    self._stopped.wait(self.delay)
                    if self._loses():
                        break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _loses(self) -> bool:
        with self._lock:
            if not self._to_lose:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """Run a proxy in front of a port of 127.0.0.1."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
