"""Keyed state against plain dicts: epochs, crashes, turning back, rescaling, merging."""

from __future__ import annotations

import copy
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from state_support import FakeJob, clip
from tiers import examples
from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from turnback.state.files import in_order, plan_merges
from turnback.values.typeinfo import Types


class Join:
    def create_accumulator(self):
        return ("", 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return f"{accumulator[0]}/{accumulator[1]}"


DESCRIPTORS = [
    ValueStateDescriptor("value", Types.STRING()),
    ListStateDescriptor("list", Types.STRING()),
    MapStateDescriptor("map", Types.STRING(), Types.STRING()),
    ReducingStateDescriptor("reducing", lambda a, b: a + b, Types.STRING()),
    AggregatingStateDescriptor("aggregating", Join(), Types.TUPLE([Types.STRING(), Types.LONG()])),
]
KEYS = ["", "a", "b", "\0", "é", "long" * 60, *(f"k{i}" for i in range(6))]
SUBS = ["", "x", "y", "z", "sub" * 70]

SHARED_MEMORY = Path("/dev/shm")  # where syncing costs nothing

Model = dict[str, dict[str, Any]]

texts = st.text(max_size=3)
keys = st.sampled_from(KEYS)
subs = st.sampled_from(SUBS)
machines = st.integers(0, 1)
operations = st.one_of(
    st.tuples(st.just("update"), texts),
    st.tuples(st.just("add"), texts),
    st.tuples(st.just("add_all"), st.lists(texts, max_size=3)),
    st.tuples(st.just("replace"), st.lists(texts, max_size=3)),
    st.tuples(st.just("put"), subs, texts),
    st.tuples(st.just("put"), subs, texts),
    st.tuples(st.just("remove"), subs),
    st.tuples(st.just("get"), subs),
    st.tuples(st.just("reduce"), texts),
    st.tuples(st.just("aggregate"), texts),
    st.tuples(st.just("clear"), st.sampled_from([d.name for d in DESCRIPTORS])),
    st.tuples(st.just("read")),
)


def on_state(h: dict[str, Any], operation: tuple[Any, ...]) -> Any:
    match operation:
        case ("update", text):
            return h["value"].update(text)
        case ("add", text):
            return h["list"].add(text)
        case ("add_all", many):
            return h["list"].add_all(many)
        case ("replace", many):
            return h["list"].update(many)
        case ("put", sub, text):
            return h["map"].put(sub, text)
        case ("remove", sub):
            return h["map"].remove(sub)
        case ("get", sub):
            return h["map"].get(sub)
        case ("reduce", text):
            return h["reducing"].add(text)
        case ("aggregate", text):
            return h["aggregating"].add(text)
        case ("clear", name):
            return h[name].clear()
    assert h["map"].is_empty() == (h["map"].keys() == [])
    return (
        h["value"].value(),
        h["list"].get(),
        dict(h["map"].items()),
        h["reducing"].get(),
        h["aggregating"].get(),
    )


def on_model(m: dict[str, Any], operation: tuple[Any, ...]) -> Any:
    match operation:
        case ("update", text):
            m["value"] = text
        case ("add", text):
            m.setdefault("list", []).append(text)
        case ("add_all", many):
            m.setdefault("list", []).extend(many)
        case ("replace", many):
            m["list"] = list(many)
        case ("put", sub, text):
            m.setdefault("map", {})[sub] = text
        case ("remove", sub):
            m.get("map", {}).pop(sub, None)
        case ("get", sub):
            return m.get("map", {}).get(sub)
        case ("reduce", text):
            m["reducing"] = m.get("reducing", "") + text
        case ("aggregate", text):
            m.setdefault("aggregating", []).append(text)
        case ("clear", name):
            m.pop(name, None)
        case ("read",):
            added = m.get("aggregating")
            result = None if added is None else f"{''.join(added)}/{len(added)}"
            return (
                m.get("value"),
                m.get("list", []),
                dict(m.get("map", {})),
                m.get("reducing"),
                result,
            )
    return None


class KeyedState(RuleBasedStateMachine):
    kind = "hashmap"

    @initialize(parallelism=st.integers(1, 5))
    def start(self, parallelism: int) -> None:
        self.directory = Path(
            tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
        )
        self.job = FakeJob(self.kind, self.directory / "m0", DESCRIPTORS, parallelism=parallelism)
        self.model: Model = {}
        self.snapshots: list[tuple[Any, ...]] = []
        self.attempts = itertools.count(2)
        self.snapshot()

    @rule(machine=machines, steps=st.lists(st.tuples(keys, operations), max_size=15))
    def epoch(self, machine: int, steps: list[tuple[str, tuple[Any, ...]]]) -> None:
        """Tasks may run where the store is missing, or of some time ago, or of another past."""
        self.job.root = self.directory / f"m{machine}"
        # What a step reads must not change with the steps after it.
        expected = [copy.deepcopy(on_model(self.model.setdefault(k, {}), o)) for k, o in steps]
        assert self.job.run([(k, lambda h, o=o: on_state(h, o)) for k, o in steps]) == expected

    @rule(machine=machines, steps=st.lists(st.tuples(keys, operations), max_size=8))
    def failed_epoch(self, machine: int, steps: list[tuple[str, tuple[Any, ...]]]) -> None:
        self.job.root = self.directory / f"m{machine}"
        self.job.run([(k, lambda h, o=o: on_state(h, o)) for k, o in steps], confirm=False)

    @rule()
    def snapshot(self) -> None:
        job = self.job
        kept = (list(job.files), job.epoch, copy.deepcopy(self.model), job.parallelism)
        self.snapshots.append(kept)

    @rule(data=st.data())
    def turn_back(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(range(len(self.snapshots))))
        files, epoch, model, parallelism = self.snapshots[chosen]
        job = self.job
        job.files, job.epoch, job.parallelism = list(files), epoch, parallelism
        job.line = f"{next(self.attempts)}-n"
        self.model = copy.deepcopy(model)

    @rule(parallelism=st.integers(1, 5))
    def rescale(self, parallelism: int) -> None:
        self.job.rescale(parallelism)

    @rule(data=st.data())
    @precondition(lambda self: self.job.files)
    def merge_any(self, data: st.DataObject) -> None:
        files = self._partition_files(data)
        if not files:
            return
        ends = [i + 1 for i, f in enumerate(files) if f.last_epoch != _next_epoch(files, i)]
        start = data.draw(st.sampled_from([0, *ends[:-1]]))
        end = data.draw(st.sampled_from([e for e in ends if e > start]))
        self.job.merge(files[start:end], final=start == 0 and data.draw(st.booleans()))

    @rule(data=st.data())
    @precondition(lambda self: self.job.files)
    def merge_planned(self, data: st.DataObject) -> None:
        for merge in plan_merges(self._partition_files(data)):
            self.job.merge(list(merge.files), merge.final)

    @rule(machine=machines)
    def compare(self, machine: int) -> None:
        self.job.root = self.directory / f"m{machine}"
        read = ("read",)
        found = self.job.run([(k, lambda h: on_state(h, read)) for k in KEYS], confirm=False)
        assert found == [on_model(self.model.get(k, {}), read) for k in KEYS]

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        try:
            for machine in (0, 1):
                self.compare(machine)
        finally:
            shutil.rmtree(self.directory)

    def _partition_files(self, data: st.DataObject) -> list[Any]:
        """The files of one partition, after the clipping every rescale does."""
        self.job.rescale(self.job.parallelism)
        clipped = {(f.first_group, f.last_group) for f in self.job.files}
        partition = data.draw(st.integers(0, self.job.parallelism - 1))
        first = -(-partition * 16 // self.job.parallelism)
        last = -(-(partition + 1) * 16 // self.job.parallelism) - 1
        assert all(last < a or first > b or first <= a <= b <= last for a, b in clipped)
        return in_order(f for f in self.job.files if clip(f, first, last))


def _next_epoch(files: list[Any], index: int) -> int | None:
    return files[index + 1].last_epoch if index + 1 < len(files) else None


class RocksKeyedState(KeyedState):
    kind = "rocksdb"


TestHashMap = KeyedState.TestCase
TestHashMap.settings = settings(
    max_examples=examples(50),
    stateful_step_count=25,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestRocks = RocksKeyedState.TestCase
TestRocks.settings = settings(TestHashMap.settings, max_examples=examples(12))
