"""The real `FileSink`, on a file system whose operations fail as the world decides.

What a task writes is one step, when it is prepared. On the driver each rename, each removal and
each record of the sink is one: a file system that did not answer has done it or not, never later.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from simulation.world import World
from turnback import FileSink
from turnback.errors import SinkError, StorageError
from turnback.sinks.base import SinkWriter, WriterContext
from turnback.storage.local import LocalStorage

_MEMORY = Path("/dev/shm")


class Directory:
    """Where the files go, in memory if the machine has a file system there."""

    path: Path | None = None
    world: World

    @classmethod
    def get(cls) -> Path:
        if cls.path is None:
            cls.path = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
            atexit.register(cls.remove)  # which processes that were forked have to do themselves
        return cls.path

    @classmethod
    def remove(cls) -> None:
        if cls.path is not None:
            shutil.rmtree(cls.path, ignore_errors=True)
            cls.path = None


class SimulatedFiles(FileSink):
    """A file sink whose tasks prepare in one step."""

    def __init__(self, name: str) -> None:
        super().__init__(Directory.get() / name, "json")

    def writer(self, ctx: WriterContext) -> SinkWriter:
        writer: Any = super().writer(ctx)
        prepare = writer.prepare

        def prepared() -> bytes | None:
            what = f"files: prepare {ctx.attempt}.{ctx.epoch}.{ctx.partition}"
            result: bytes | None = Directory.world.call(what, prepare, SinkError, late=False)
            return result

        writer.prepare = prepared
        return writer


def rows(name: str) -> list[tuple[Any, ...]]:
    """What readers see."""
    paths = sorted((Directory.get() / name).glob("*.json"))
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [tuple(json.loads(line).values()) for line in lines]


def staged(name: str) -> list[str]:
    """What is written and not visible."""
    return sorted(map(str, (Directory.get() / name).rglob("*.inprogress")))


@contextmanager
def simulated_files(world: World) -> Iterator[None]:
    """An empty file system, whose operations are steps of the world."""
    Directory.world = world
    world.hidden = str(Directory.get())
    for path in Directory.get().iterdir():
        shutil.rmtree(path)
    with ExitStack() as patches:
        for owner, name, failure in (
            (Path, "rename", OSError),
            (Path, "unlink", OSError),
            (LocalStorage, "put", StorageError),
            (LocalStorage, "put_if_absent", StorageError),
        ):
            patches.enter_context(mock.patch.object(owner, name, _step(owner, name, failure)))
        yield


def _step(owner: Any, name: str, failure: type[Exception]) -> Any:
    original = getattr(owner, name)

    def step(self: Any, *args: Any, **named: Any) -> Any:
        subject = self.name if isinstance(self, Path) else args[0]
        return Directory.world.call(
            f"files: {name} {subject}",
            lambda: original(self, *args, **named),
            failure,
            late=False,
        )

    return step
