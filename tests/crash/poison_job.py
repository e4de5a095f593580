"""A job with one bad record in 10,000, whose function is mended with `--mended`: see `--help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from turnback import (
    FileSink,
    KeyedProcessFunction,
    RestartStrategies,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.testing import LocalEngine

FILES, MANY, KEYS = 3, 10_000, 7
JOB = "poison"


class Number(KeyedProcessFunction):
    """Gives every element with its number among those of its key; bad ones have been counted."""

    count = ValueStateDescriptor("count", int)

    def __init__(self, mended: bool, first: int) -> None:
        self.mended, self.first = mended, first

    def process_element(self, value, ctx):
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        yield value.key, value.n, number
        if is_bad(value.n) and not self.mended and value.n >= self.first:
            raise ValueError(f"{value.n} is bad")


def is_bad(n: int) -> bool:
    return n % MANY == MANY // 2


def write_input(directory: Path) -> list[tuple[str, int]]:
    """One file for each epoch, of 10,000 elements; returns all of them."""
    directory.mkdir()
    for file in range(FILES):
        path = directory / f"{file}.json"
        rows = [{"key": key, "n": n} for key, n in elements(file)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + file,) * 2)
    return [each for file in range(FILES) for each in elements(file)]


def elements(file: int) -> list[tuple[str, int]]:
    return [(f"k{n % KEYS}", n) for n in range(file * MANY, (file + 1) * MANY)]


def main() -> int:
    """Run the job until its input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base", help="with the input; output and jobs go there")
    parser.add_argument("policy", help="of the function; with fail, the first file is good")
    parser.add_argument("--mended", action="store_true", help="nothing is bad any more")
    args = parser.parse_args()
    env = StreamExecutionEnvironment(None, f"{args.base}/jobs", engine=LocalEngine())
    env.set_parallelism(2).enable_checkpointing(10)
    env.set_restart_strategy(RestartStrategies.no_restart())
    events = env.from_files(
        f"{args.base}/input", "json", "key string, n bigint", uid="events", max_files_per_epoch=1
    )
    function = Number(args.mended, MANY if args.policy == "fail" else 0)
    numbered = events.key_by("key").process(function, "key string, n bigint, m bigint")
    numbered.uid("numbers").on_error(args.policy)
    numbered.sink_to(FileSink(f"{args.base}/out", "json")).uid("out")
    if args.policy == "dead_letter":
        letters = FileSink(f"{args.base}/letters", "json")
        numbered.dead_letters().sink_to(letters).uid("letters")
    env.execute(JOB, bounded=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
