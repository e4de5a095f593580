"""The job behind the savepoints in `golden`: every kind of state, and awkward types.

`python tests/golden_job.py DIRECTORY` takes such a savepoint. Those that are committed
are never made anew: they show that what older versions wrote can still be read.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from turnback import (
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.functions import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
)


@dataclass
class Stats:
    n: int
    when: datetime
    day: date
    price: Types.BIG_DEC(10, 2)  # type: ignore[valid-type]
    huge: Types.BIG_INT()  # type: ignore[valid-type]
    tags: list[str]
    parts: dict[str, float]
    note: str | None = None


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, a: Any, b: Any) -> Any:
        return (a[0] + b[0], a[1] + b[1])


class Everything(KeyedProcessFunction):
    stats = ValueStateDescriptor("stats", Stats)
    seen = ListStateDescriptor("seen", Types.INT())
    by_day = MapStateDescriptor("by day", date, int)
    most = ReducingStateDescriptor("most", max, int)
    mean = AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = value.n
        before = self.stats.value()
        day = date(2026, 1, 1 + n % 28)
        self.stats.update(
            Stats(
                n=(before.n if before else 0) + 1,
                when=datetime(2026, 1, 1, 12, n % 60, tzinfo=UTC),
                day=day,
                price=(before.price if before else Decimal(0)) + Decimal("1.25"),
                huge=(before.huge if before else 0) + 10**40,
                tags=[*(before.tags if before else []), str(n)][-3:],
                parts={"a": n / 2},
            )
        )
        self.seen.add(n)
        self.by_day[day] = (self.by_day.get(day) or 0) + 1
        self.most.add(n)
        self.mean.add(n)
        now = self.stats.value()
        told = [now.n, str(now.price), str(now.huge), now.tags, list(self.seen.get())]
        told += [sorted((str(k), v) for k, v in self.by_day.items()), self.most.get()]
        yield value.k, value.part, json.dumps([*told, self.mean.get()])


def elements(numbers: range) -> list[dict[str, Any]]:
    return [{"k": f"k/{n % 5}", "part": n % 2, "n": n} for n in numbers]


def write(directory: Path, numbers: range) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(e) + "\n" for e in elements(numbers))
    (directory / f"{numbers.start}.json").write_text(lines)


def build(env: StreamExecutionEnvironment, events: Path, out: Path) -> None:
    stream = env.from_files(events, "json", "k string, part int, n bigint", uid="events")
    keyed = stream.key_by("k", "part").process(Everything(), "k string, part int, told string")
    keyed.uid("every/thing").sink_to(FileSink(out, "json")).uid("out")


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        events, out = Path(place, "events"), Path(place, "out")
        write(events, range(40))
        env = StreamExecutionEnvironment.get_execution_environment(root=Path(place, "jobs"))
        build(env.set_parallelism(2).enable_checkpointing(10), events, out)
        client = env.execute_async("golden")
        while not list(out.glob("*.json")):
            client.done() and client.result()
        client.stop_with_savepoint(savepoint_directory=target, label="golden").result(60)
        client.result(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
