import sys

import msgspec

from turnback.core.batch import Batch
from turnback.core.errors import ConfigurationError
from turnback.sinks.base import CommitterContext, SinkWriter, WriterContext
from turnback.sinks.inline import InlineSink, inline_transaction


class PrintSink(InlineSink):
    """Prints every element on the driver's standard output, one per line, when it is committed.

    For looking at small streams: the lines ride in the checkpoint. Each is printed once by one
    driver process; a driver that dies between printing and recording that it did prints the
    last checkpoint's lines again when it is restarted.

    Args:
        prefix: Put before every line as `prefix> `.

    Raises:
        ConfigurationError: `prefix` is not a string.
    """

    kind = "print"

    def __init__(self, prefix: str = "") -> None:
        if not isinstance(prefix, str):
            raise ConfigurationError(f"PrintSink: prefix is a string, not {prefix!r}")
        super().__init__()
        self.prefix = prefix

    def writer(self, ctx: WriterContext) -> SinkWriter:
        """Turn elements into lines."""
        return _PrintWriter(f"{self.prefix}> " if self.prefix else "", ctx)

    def apply(self, body: bytes, ctx: CommitterContext) -> None:
        """Print the lines of one task."""
        lines = msgspec.msgpack.decode(body, type=list[str])
        text = "".join(f"{line}\n" for line in lines)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()

    def describe(self) -> dict[str, str]:
        """Say what lines begin with."""
        return {"kind": self.kind, "prefix": self.prefix}

    def __repr__(self) -> str:
        return f"PrintSink({self.prefix!r})"


class _PrintWriter(SinkWriter):
    def __init__(self, start: str, ctx: WriterContext) -> None:
        self._start, self._ctx = start, ctx
        self._lines: list[str] = []

    def write(self, batch: Batch) -> None:
        start = self._start
        # A lone surrogate cannot be encoded; showing it escaped beats failing the job.
        self._lines += [
            f"{start}{row}".encode(errors="backslashreplace").decode() for row in batch.rows
        ]

    def prepare(self) -> bytes | None:
        if not self._lines:
            return None
        return inline_transaction(PrintSink.kind, self._ctx, msgspec.msgpack.encode(self._lines))

    def abort(self) -> None:
        self._lines = []
