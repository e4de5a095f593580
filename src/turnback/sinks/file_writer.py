import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from turnback.core.batch import Batch
from turnback.core.errors import SinkError
from turnback.sinks.base import SinkWriter, WriterContext
from turnback.sinks.formats import FORMATS, Encoder
from turnback.sinks.handle import name_sink
from turnback.sinks.staged import SUFFIX, StagedFile, attempt_directory, new_name
from turnback.storage.directory import make_directories, sync_upwards


class FileWriter(SinkWriter):
    """Writes one hidden file, created with the first element."""

    def __init__(
        self, root: Path, format_name: str, prefix: str, header: bool, ctx: WriterContext
    ) -> None:
        self._root, self._format, self._header, self._ctx = root, format_name, header, ctx
        self._final = new_name(prefix, ctx, format_name)
        self._staged = attempt_directory(root, ctx) / (self._final + SUFFIX)
        self._file: BinaryIO | None = None
        self._encoder: Encoder | None = None
        self._rows = 0
        self._closed = False

    def write(self, batch: Batch) -> None:
        """Add elements to the file."""
        self._check_open()
        if not len(batch):
            return
        with self._failures():
            arrow = batch.arrow
            if self._encoder is None:
                make_directories(self._staged.parent)
                self._file = self._staged.open("xb")
                self._encoder = FORMATS[self._format](self._file, arrow.schema, self._header)
            self._encoder.write(arrow)
        self._rows += len(batch)

    def prepare(self) -> bytes | None:
        """Sync the file and its name."""
        self._check_open()
        self._closed = True
        file, encoder = self._file, self._encoder
        if file is None or encoder is None:
            return None
        with self._failures():
            encoder.finish()
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
            file.close()
            sync_upwards(self._staged.parent, self._root)
        ctx = self._ctx
        staged = self._staged.relative_to(self._root).as_posix()
        return StagedFile(
            staged, self._final, length, self._rows, ctx.epoch, ctx.partition
        ).encode()

    def abort(self) -> None:
        """Remove the file."""
        self._closed = True
        if self._encoder is not None:
            self._encoder.abandon()
        if self._file is None:
            return
        # Closing flushes, which fails again when the disk is full; the file goes anyway.
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._staged.unlink(missing_ok=True)

    def _check_open(self) -> None:
        if self._closed:
            sink = name_sink(self._ctx.job, self._ctx.uid)
            raise SinkError(f"{sink}: this writer has failed, or was prepared or aborted already")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Abandon the file on any failure, and say which one and why on those of the system."""
        try:
            yield
        except OSError as error:
            self.abort()
            raise SinkError(
                f"{name_sink(self._ctx.job, self._ctx.uid)}: cannot write {self._staged}: "
                f"{error.strerror or error}; the unfinished file was removed"
            ) from error
        except pa.ArrowException as error:
            self.abort()
            raise SinkError(
                f"{name_sink(self._ctx.job, self._ctx.uid)}: {self._ctx.type} cannot be written "
                f"as {self._format}: {error}"
            ) from error
        except BaseException:
            self.abort()
            raise
