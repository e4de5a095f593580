"""Steady traffic for 2,000 epochs: neither the job directory nor the driver may keep growing."""

import gc
import os
import time
from pathlib import Path

import pytest

from oneprocess import OneProcessJob
from turnback import KeyedProcessFunction, MapStateDescriptor, ValueStateDescriptor
from turnback.config.checkpointing import CheckpointSettings

EPOCHS, KEYS = 2_000, 50


class Busy(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)
    recent = MapStateDescriptor("recent", int, int)

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + 1)
        self.recent.put(value.n, value.n)
        self.recent.remove(value.n - 5)
        yield value


def files_and_bytes(directory: Path) -> tuple[int, int]:
    files = [p for p in directory.rglob("*") if p.is_file()]
    return len(files), sum(p.stat().st_size for p in files)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(600)
def test_2000_epochs(tmp_path):
    job = OneProcessJob(tmp_path, Busy(), CheckpointSettings(interval_ms=10, num_retained=2))
    sizes, memory = {}, {}
    for epoch in range(1, EPOCHS + 1):
        job.run([(f"k{i}", epoch) for i in range(KEYS)])
        if epoch in (EPOCHS // 4, EPOCHS):
            job.coordinator.final()
            time.sleep(2)  # clean-up goes on beside the next epochs
            gc.collect()
            sizes[epoch] = files_and_bytes(tmp_path / "job")
            memory[epoch] = resident_bytes()
    job.coordinator.close()
    early, late = sizes[EPOCHS // 4], sizes[EPOCHS]
    assert late[0] <= early[0] + 40, f"files {early[0]} -> {late[0]}"
    assert late[1] <= 2 * early[1] + 200_000, f"bytes {early[1]} -> {late[1]}"
    assert memory[EPOCHS] <= memory[EPOCHS // 4] + 60_000_000, memory
