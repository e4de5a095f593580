"""State with a time to live against plain dicts: merges, other machines, rescaling."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_support import FakeJob
from tiers import examples
from turnback import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from turnback.functions import ReducingStateDescriptor

TTL = 10
KEYS = ["a", "b", "long" * 60]
SUBS = ["x", "sub" * 70]
SHARED_MEMORY = Path("/dev/shm")

keys, subs = st.sampled_from(KEYS), st.sampled_from(SUBS)
numbers = st.integers(0, 9)
operations = st.one_of(
    st.tuples(st.just("update"), numbers),
    st.tuples(st.just("value")),
    st.tuples(st.just("forget")),
    st.tuples(st.just("append"), numbers),
    st.tuples(st.just("list")),
    st.tuples(st.just("clear")),
    st.tuples(st.just("put"), subs, numbers),
    st.tuples(st.just("get"), subs),
    st.tuples(st.just("remove"), subs),
    st.tuples(st.just("items")),
    st.tuples(st.just("empty")),
    st.tuples(st.just("reduce"), numbers),
)
epochs = st.tuples(
    st.integers(0, 7),
    st.lists(st.tuples(keys, operations), max_size=6),
    st.sampled_from(["nothing", "merge", "fold", "move", "rescale"]),
)


class Model:
    """One key: every value with the time of its last update, which a reader may be."""

    def __init__(self, on_read: bool) -> None:
        self.on_read = on_read
        self.value: tuple[int, int] | None = None
        self.reduced: tuple[int, int] | None = None
        self.list: list[tuple[int, int]] = []
        self.map: dict[str, tuple[int, int]] = {}

    def forget(self, now: int) -> None:
        def alive(held: Any) -> bool:
            return held is not None and now < held[1] + TTL

        self.value = self.value if alive(self.value) else None
        self.reduced = self.reduced if alive(self.reduced) else None
        self.list = [held for held in self.list if alive(held)]
        self.map = {sub: held for sub, held in self.map.items() if alive(held)}

    def read(self, held: tuple[int, int], now: int) -> tuple[int, int]:
        return (held[0], now) if self.on_read else held

    def apply(self, now: int, name: str, *args: Any) -> Any:
        self.forget(now)
        match name, *args:
            case "update", n:
                self.value = (n, now)
            case ("forget",):
                self.value = None
            case ("value",):
                self.value = self.value and self.read(self.value, now)
                return self.value and self.value[0]
            case "append", n:
                self.list.append((n, now))
            case ("list",):
                self.list = [self.read(held, now) for held in self.list]
                return [n for n, _ in self.list]
            case ("clear",):
                self.list = []
            case "put", sub, n:
                self.map[sub] = (n, now)
            case "get", sub:
                if sub not in self.map:
                    return None
                self.map[sub] = self.read(self.map[sub], now)
                return self.map[sub][0]
            case "remove", sub:
                self.map.pop(sub, None)
            case ("items",):
                self.map = {sub: self.read(held, now) for sub, held in self.map.items()}
                return sorted((sub, n) for sub, (n, _) in self.map.items())
            case ("empty",):
                return not self.map
            case "reduce", n:
                self.reduced = (n + (self.reduced[0] if self.reduced else 0), now)
                return self.reduced[0]
        return None


def run(name: str, *args: Any) -> Any:
    """An operation on the real state."""

    def step(h: Any) -> Any:
        match name, *args:
            case "update", n:
                h["value"].update(n)
            case ("forget",):
                h["value"].clear()
            case ("value",):
                return h["value"].value()
            case "append", n:
                h["list"].add(n)
            case ("list",):
                return h["list"].get()
            case ("clear",):
                h["list"].clear()
            case "put", sub, n:
                h["map"].put(sub, n)
            case "get", sub:
                return h["map"].get(sub)
            case "remove", sub:
                h["map"].remove(sub)
            case ("items",):
                return sorted(h["map"].items())
            case ("empty",):
                return h["map"].is_empty()
            case "reduce", n:
                h["reduced"].add(n)
                return h["reduced"].get()
        return None

    return step


def happens(job: FakeJob, action: str, place: int) -> None:
    files = job.files
    if action == "merge" and len(files) > 1 and job.parallelism == 1:
        job.merge(files[len(files) // 2 :], False)
    elif action == "fold" and files and job.parallelism == 1:
        job.merge(files, True)
    elif action == "move":
        job.root = job.root.with_name(f"machine-{place % 2}")
    elif action == "rescale":
        job.rescale(3 - job.parallelism)


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("on_read", [False, True])
@settings(max_examples=examples(30), deadline=None)
@given(steps=st.lists(epochs, max_size=12))
def test_it_is_a_dict_that_forgets(kind: str, on_read: bool, steps: Any) -> None:
    builder = StateTtlConfig.new_builder(Time(TTL)).cleanup_incrementally(3, False)
    ttl = (builder.update_ttl_on_read_and_write() if on_read else builder).build()
    descriptors = [
        ValueStateDescriptor("value", Types.LONG()),
        ListStateDescriptor("list", Types.LONG()),
        MapStateDescriptor("map", Types.STRING(), Types.LONG()),
        ReducingStateDescriptor("reduced", lambda a, b: a + b, Types.LONG()),
    ]
    place = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
    job = FakeJob(kind, place / "machine-0", [d.enable_time_to_live(ttl) for d in descriptors])
    models = {key: Model(on_read) for key in KEYS}
    try:
        for number, (later, operations, action) in enumerate(steps):
            job.now_ms += later
            found = job.run([(key, run(*operation)) for key, operation in operations])
            expected = [models[key].apply(job.now_ms, *each) for key, each in operations]
            assert found == expected
            happens(job, action, number)
        job.root = place / "another"
        for key, model in models.items():
            found = [job.one(key, run(name)) for name in ("value", "list", "items", "empty")]
            assert found == [
                model.apply(job.now_ms, name) for name in ("value", "list", "items", "empty")
            ]
    finally:
        shutil.rmtree(place)
