"""A job without Spark: epochs over partitions of keyed state, in files of one dict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from turnback.functions.descriptors import StateDescriptor
from turnback.state.backend import KeyedStateBackend
from turnback.state.delta import BuiltDelta, DeltaBuilder, OpenFile, ReadFile, open_delta
from turnback.state.expiry import merge_limits
from turnback.state.files import StateFile, merged_lineage
from turnback.state.merging import merge
from turnback.state.replica import Replica, open_replica
from turnback.values.keys import KeyCodec, group_range
from turnback.values.typeinfo import Types


def opener(read: ReadFile) -> OpenFile:
    """Opens the files whose bytes a function gives."""
    return partial(open_delta, read=read)


def merged_file(path: str, built: BuiltDelta, files: Sequence[StateFile], final: bool) -> StateFile:
    """What a manifest says of a file that takes the place of others."""
    return msgspec.structs.replace(
        built.file(path, files[-1].last_epoch),
        first_epoch=min(file.first_epoch for file in files),
        complete=final,
        lineage=merged_lineage(files, complete=final),
    )


Step = Callable[[dict[str, Any]], Any]


class FakeJob:
    """Runs steps on keyed state, epoch by epoch, and keeps what a manifest would."""

    def __init__(
        self,
        kind: str,
        root: Path,
        descriptors: Iterable[StateDescriptor],
        *,
        parallelism: int = 1,
        max_parallelism: int = 16,
        key_type: Any = None,
        uid: str = "op",
    ) -> None:
        self.kind, self.root, self.uid = kind, root, uid
        self.descriptors = list(descriptors)
        self.codec = KeyCodec((key_type or Types.STRING(),), by_columns=True)
        self.parallelism, self.max_parallelism = parallelism, max_parallelism
        self.blobs: dict[str, bytes] = {}
        self.files: list[StateFile] = []
        self.epoch, self.line, self.made = 0, "1-n", 0
        self.now_ms = 0
        self.found: list[str] = []

    def backend(self) -> tuple[KeyedStateBackend, dict[str, Any]]:
        backend = KeyedStateBackend(self.uid, self.codec, self.max_parallelism)
        return backend, {d.name: backend.register(d) for d in self.descriptors}

    def home(self, backend: KeyedStateBackend, partition: int = 0) -> Replica:
        groups = group_range(partition, self.parallelism, self.max_parallelism)
        files = [f for f in self.files if clip(f, *groups)]
        directory = self.root / f"{partition}-of-{self.parallelism}"
        schemas = backend.schemas()
        home = open_replica(
            self.kind, directory, files, self.read, schemas, groups, now_ms=self.now_ms
        )
        self.found.append(home.opening)
        return home

    def run(self, steps: Iterable[tuple[Any, Step]], *, confirm: bool = True) -> list[Any]:
        """One epoch: each step is run with its key current; returns what the steps returned."""
        steps = list(steps)
        results: dict[int, Any] = {}
        self.epoch += 1
        new = []
        for partition in range(self.parallelism):
            first, last = group_range(partition, self.parallelism, self.max_parallelism)
            backend, handles = self.backend()
            with closing(self.home(backend, partition)) as home:
                backend.begin(home.store, self.epoch, self.now_ms)
                for i, (key, step) in enumerate(steps):
                    if first <= self.codec.group(key, self.max_parallelism) <= last:
                        backend.key = self.codec.normalizer.normalize(key)
                        results[i] = step(handles)
                builder = DeltaBuilder()
                backend.drain(builder)
            built = builder.build()
            if built is not None:
                path = self.store(built.data)
                new.append(built.file(path, self.epoch, self.line))
        if confirm:
            self.files += new
        else:
            self.epoch -= 1
        return [results[i] for i in range(len(steps))]

    def one(self, key: Any, step: Step) -> Any:
        return self.run([(key, step)])[0]

    def store(self, data: bytes) -> str:
        self.made += 1
        path = f"state/{self.line}/{self.made}"
        self.blobs[path] = data
        return path

    def read(self, file: StateFile) -> bytes:
        return self.blobs[file.path]

    def merge(self, chosen: list[StateFile], final: bool) -> StateFile:
        limits = merge_limits(self.backend()[0].schemas(), self.now_ms)
        built = merge(chosen, self.read, final=final, limits=limits)
        file = merged_file(self.store(built.data), built, chosen, final)
        self.files = [f for f in self.files if f not in chosen] + [file]
        return file

    def rescale(self, parallelism: int) -> None:
        self.parallelism = parallelism
        ranges = [group_range(p, parallelism, self.max_parallelism) for p in range(parallelism)]
        self.files = [c for f in self.files for r in ranges if (c := clip(f, *r))]


def clip(file: StateFile, first: int, last: int) -> StateFile | None:
    """The same file with only the key groups first..last; None when it has none of them."""
    first, last = max(first, file.first_group), min(last, file.last_group)
    return replace(file, first_group=first, last_group=last) if first <= last else None
