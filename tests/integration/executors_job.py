"""Counts letters on a cluster: `executors_job.py MASTER DIRECTORY SETTINGS`."""

import json
import sys
from pathlib import Path

from turnback import (
    FileSink,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)


class Count(KeyedProcessFunction):
    seen = ValueStateDescriptor("seen", int)

    def process_element(self, value, ctx):
        count = (self.seen.value() or 0) + 1
        self.seen.update(count)
        yield value, count


def main(master: str, directory: str, settings: str) -> None:
    base = Path(directory)
    given = {"state.checkpoints.dir": str(base / "jobs"), **json.loads(settings)}
    configuration = {"spark.master": master, **given}
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(4)
    env.enable_checkpointing("1 s")
    letters = env.from_collection([*"abcdefgh"] * 3, Types.STRING(), uid="letters")
    counts = letters.key_by(lambda letter: letter, key_type="string").process(Count(), "letter string, n bigint")
    counts.uid("counts").sink_to(FileSink(base / "out", "json")).uid("out")
    env.execute("letters", bounded=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
