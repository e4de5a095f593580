"""Works off a directory of files in one process; prints how much memory it had at most, in kB.

`python backlog.py DIRECTORY INPUT RECORDS LIMIT`; a limit of 0 is none.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path

from turnback import KeyedProcessFunction, ValueStateDescriptor
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness


class Count(KeyedProcessFunction):
    """State that does not grow with the backlog."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + len(value.text))
        yield (value.n,)


class Peak:
    """The most memory of this process; without files that are mapped, as state is."""

    def __init__(self) -> None:
        self.kb = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
            self.kb = max(self.kb, int(found[1]) if found else 0)
            time.sleep(0.005)


def main(directory: str, files: str, records: str, limit: str) -> None:
    def program(env) -> None:
        bounded = {"max_bytes_per_epoch": int(limit)} if int(limit) else {}
        read = env.from_files(files, "json", "n bigint, text string", "files", **bounded)
        counted = read.key_by("n").process(Count(), "n bigint").uid("count")
        counted.sink_to(DiscardSink()).uid("out")

    peak = Peak()
    settings = {"execution.checkpointing.interval": "50 ms"}
    with JobHarness(program, directory, configuration=settings, real_sinks=["out"]) as job:
        while sum(epoch.records for epoch in job.report.epochs) < int(records):
            time.sleep(0.01)
        epochs = len(job.report.epochs)
    print(peak.kb, epochs)


if __name__ == "__main__":
    main(*sys.argv[1:])
