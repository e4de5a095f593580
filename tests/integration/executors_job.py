"""Counts letters on a cluster: `executors_job.py MASTER ROOT OUT SETTINGS [INPUT]`."""

import json
import sys

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


def main(master: str, root: str, out: str, settings: str, input: str | None = None) -> None:
    configuration = {"spark.master": master, "state.checkpoints.dir": root, **json.loads(settings)}
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(4)
    env.enable_checkpointing("1 s")
    if input is None:
        letters = env.from_collection([*"abcdefgh"] * 3, Types.STRING(), uid="letters")
    else:
        lines = env.from_files(input, "text", "value string", uid="letters")
        letters = lines.map(lambda line: line.value, "string").uid("letter")
    counts = letters.key_by(lambda letter: letter, key_type="string").process(
        Count(), "letter string, n bigint"
    )
    counts.uid("counts").sink_to(FileSink(out, "json")).uid("out")
    env.execute("letters", bounded=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
