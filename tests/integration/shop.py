"""A shop whose operator has a state of every shape, and savepoints of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from job_support import Jobs
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.config.checkpointing import SavepointFormat
from turnback.driver.savepoints import Exporter
from turnback.job.request import Request, RequestKind
from turnback.snapshot.directory import SavepointDirectory
from turnback.spark.engine import SparkEngine
from turnback.state.files import StorageRef

OUT = "user string, spent bigint, items array<string>, prices array<bigint>"
TOTAL = ValueStateDescriptor("total", int)
ITEMS = ListStateDescriptor("items", str)
PRICES = MapStateDescriptor("prices", str, int)
EVERY = Types.ROW_NAMED(
    ["text", "at", "local", "day", "money", "tags", "map", "raw", "f", "big", "time"],
    [
        Types.STRING(),
        Types.INSTANT(),
        Types.SQL_TIMESTAMP(),
        Types.SQL_DATE(),
        Types.BIG_DEC(10, 2),
        Types.LIST(Types.LONG()),
        Types.MAP(Types.STRING(), Types.LIST(Types.INT())),
        Types.BYTES(),
        Types.FLOAT(),
        Types.BIG_INT(),
        Types.SQL_TIME(),
    ],
)  # fmt: skip
"""A row with a field of every type."""


class Shop(KeyedProcessFunction):
    """Three kinds of state; every element gives all that is known of its key."""

    total = TOTAL
    items = ITEMS
    prices = PRICES

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.price)
        self.items.add(value.item)
        self.prices.put(value.item, value.price)
        user = ctx.get_current_key()
        prices = sorted(self.prices.values())
        yield (
            (user if isinstance(user, str) else str(user)),
            self.total.value(),
            self.items.get(),
            prices,
        )


def buy(jobs: Jobs, *records: tuple[str, str, int]) -> None:
    jobs.feed("buys", *({"user": u, "item": i, "price": p} for u, i, p in records))


def shop(
    jobs: Jobs, out: str = "out", uid: str = "shop", key: Any = ("user",), **key_type: Any
) -> StreamExecutionEnvironment:
    env = jobs.env()
    buys = jobs.files(env, "buys", "user string, item string, price bigint")
    seen = buys.key_by(*key, **key_type).process(Shop(), OUT).uid(uid)
    seen.sink_to(jobs.sink(out)).uid("out")
    return env


def saved(
    jobs: Jobs, name: str = "sp", format: SavepointFormat = SavepointFormat.CANONICAL
) -> Path:
    """A savepoint of the job's last checkpoint."""
    path = jobs.directory / name
    directory, id = SavepointDirectory.locate(path), uuid.uuid4().hex
    directory.begin(id)
    request = Request(id=id, kind=RequestKind.SAVEPOINT, created_ms=0, type=format, label="first")
    exporter = Exporter(SparkEngine(jobs.spark), StorageRef(str(jobs.path())))
    made = exporter.export(
        request, jobs.checkpoints()[-1], None, directory, 1_700_000_000_000, lambda _: None
    )
    directory.complete(made)
    return path


def checkpoint(jobs: Jobs) -> Path:
    return jobs.path() / "checkpoints" / f"{jobs.checkpoints()[-1].name}.json"


def bought(jobs: Jobs, *records: tuple[str, str, int]) -> None:
    """Run the job over these until they are in a checkpoint."""
    buy(jobs, *records)
    shop(jobs).execute("job", bounded=True)


FIRST = [("ann", "tea", 3), ("bob", "jam", 5), ("ann", "jam", 4), ("cid", "tea", 1)]


def totals(frame: DataFrame) -> dict[Any, Any]:
    return {row["key"]: row["value"] for row in frame.collect()}


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())
