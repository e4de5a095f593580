"""Orders without repetitions: an order that was sent again within a day is left out.

    python examples/deduplication.py orders/ unique/

`orders` is a directory of JSON lines with `id` and `amount`. What is remembered of an order is its
id, for a day, and then nothing: however long the job runs, its state is that of one day.
"""

import sys
from collections.abc import Iterator
from typing import Any

from turnback import (
    FileSink,
    KeyedProcessFunction,
    Row,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
)

ORDER = "id string, amount bigint"
ONE_DAY = StateTtlConfig.new_builder(Time.days(1)).build()


class FirstOnly(KeyedProcessFunction):
    seen = ValueStateDescriptor("seen", bool).enable_time_to_live(ONE_DAY)

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        if not self.seen.value():
            self.seen.update(True)
            yield value


def build(env: StreamExecutionEnvironment, orders: str, unique: str) -> None:
    stream = env.from_files(orders, "json", ORDER, "orders").key_by("id")
    first = stream.process(FirstOnly(), ORDER).uid("first-only")
    first.sink_to(FileSink(unique, "json")).uid("out")


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env, *sys.argv[1:3])
    env.execute("deduplication", bounded=True)
