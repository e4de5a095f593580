"""Jobs that count, and that savepoints are taken of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from job_support import COUNTED, Count, Jobs, counted, eventually
from turnback import StreamExecutionEnvironment

FIRST, SECOND = "aabcabd", "cabbaad"
KEYS = "aabcab"


def feed(jobs: Jobs, keys: str = KEYS) -> None:
    jobs.feed("events", *({"k": k} for k in keys))


def build(jobs: Jobs, function: Any = None, sink: str = "out", **configuration: Any) -> Any:
    env = jobs.env(**configuration)
    events = jobs.files(env, "events", "k string")
    counts = events.key_by("k").process(function or Count(), COUNTED).uid("count")
    counts.sink_to(jobs.sink(sink)).uid("out")
    return env


def settled(jobs: Jobs, keys: str, sink: str = "out") -> None:
    eventually(lambda: jobs.out(sink) == counted(keys))


def rows(directory: Path, uid: str = "count", state: str = "count") -> dict[Any, Any]:
    """A state, read by a program that knows nothing of Turnback."""
    table = pq.read_table(directory / "state" / uid / state)
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def events(keys: str) -> list[dict[str, Any]]:
    return [{"k": k, "n": i} for i, k in enumerate(keys)]


def save(jobs: Jobs, env: StreamExecutionEnvironment, name: str = "job") -> Path:
    """Process what is there, and stop with a savepoint."""
    path = jobs.directory / f"saved-{name}"
    client = jobs.start(env, name)
    fed = sum(1 for _ in jobs.input("events").glob("*.json"))
    while len(client.report.epochs) < fed:
        client.done() and client.result()
    client.stop_with_savepoint(savepoint_directory=path).result(90)
    client.result(90)
    return path
