"""Steady traffic for 2,000 epochs: neither the job directory nor the driver may keep growing."""

import gc
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from turnback import (
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source

pytestmark = pytest.mark.exhaustive

EPOCHS, KEYS = 1_000, 50


class Busy(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)
    recent = MapStateDescriptor("recent", int, int)

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + 1)
        self.recent.put(value.n, value.n)
        self.recent.remove(value.n - 5)
        yield value


def files_and_bytes(directory: Path) -> tuple[int, int]:
    """Of a job directory; its history has a bound of its own, which so many epochs do not reach."""
    sizes = []
    for path in directory.rglob("*"):
        if path.is_file() and path.parent.name != "history":
            with suppress(FileNotFoundError):  # the job is at work
                sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def program(env: StreamExecutionEnvironment) -> None:
    events = source(env, "events", "key string, n bigint")
    busy = events.key_by("key").process(Busy(), "key string, n bigint").uid("busy")
    busy.sink_to(DiscardSink()).uid("out")


SETTINGS = {
    "execution.checkpointing.interval": "10 ms",
    "execution.checkpointing.num-retained": 2,
}


@pytest.mark.timeout(900)
def test_1000_epochs(tmp_path):
    sizes, memory = {}, {}
    with JobHarness(
        program,
        tmp_path,
        parallelism=1,
        state_backend="rocksdb",
        configuration=SETTINGS,
        real_sinks=["out"],
    ) as job:
        for epoch in range(1, EPOCHS + 1):
            job.push("events", *((f"k{i}", epoch) for i in range(KEYS)), checkpoint=False)
            if epoch in (EPOCHS // 4, EPOCHS):
                job.checkpoint()
                time.sleep(2)  # clean-up goes on beside the next epochs
                gc.collect()
                sizes[epoch] = files_and_bytes(tmp_path / "jobs")
                memory[epoch] = resident_bytes()
        assert job.report.epochs[-1].number == EPOCHS
    early, late = sizes[EPOCHS // 4], sizes[EPOCHS]
    assert late[0] <= early[0] + 40, f"files {early[0]} -> {late[0]}"
    assert late[1] <= 2 * early[1] + 200_000, f"bytes {early[1]} -> {late[1]}"
    assert memory[EPOCHS] <= memory[EPOCHS // 4] + 60_000_000, memory
