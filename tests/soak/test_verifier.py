"""The verifier of the soak passes what is right and sees what is wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from soak.feeder import GROUPS, Feeder
from soak.plan import Kind, Step, Victim, plan
from soak.reader import Reader
from soak.replay import Fed
from soak.summary import Summary
from soak.verify import verify_output, verify_savepoint

FILES = 40


class Job:
    """What the job does, one record at a time, with dictionaries for state."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events, self.log = directory / "events", directory / "fed.jsonl"
        self.out, self.savepoint = directory / "out", directory / "savepoint"
        for path in (self.events, self.out / "accounts", self.out / "regions", self.savepoint):
            path.mkdir(parents=True)
        self.state: dict[str, dict[Any, Any]] = {
            name: {} for name in ("count", "total", "recent", "r count", "r total", "r accounts")
        }
        self.read: list[str] = []

    def run(self, files: int = FILES) -> None:
        feeder = Feeder(self.events, self.log, seed=1)
        for _ in range(files):
            feeder.feed()
        for path in sorted(self.events.glob("*.json")):
            rows = [self._account(json.loads(line)) for line in path.read_text().splitlines()]
            self._write("accounts", path.stem, rows)
            self._write("regions", path.stem, [self._region(row) for row in rows])
            self.read.append(str(path))

    def save(self) -> None:
        """Write a savepoint, as plain as it can be."""
        states = []
        for (uid, name, kind), rows in self._rows().items():
            path = f"state/{uid}-{name}.parquet"
            (self.savepoint / path).parent.mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), self.savepoint / path)
            schema = {"uid": uid, "name": name, "kind": kind}
            states.append({"schema": schema, "rows": len(rows), "files": [{"path": path}]})
        seen = "".join(json.dumps({"path": f"file://{path}"}) + "\n" for path in self.read)
        (self.savepoint / "seen").write_text(seen)
        source = {"log": [{"path": "seen"}]}
        document = {"savepoint": {"states": states, "sources": {"records": source}}}
        (self.savepoint / "_metadata.json").write_text(json.dumps(document))

    def problems(self, *, complete: bool = True) -> list[str]:
        self.save()
        fed = Fed.read(self.events, self.log)
        found = verify_savepoint(fed, self.savepoint.as_uri(), complete=complete)
        return found + (verify_output(fed, self.out) if complete else [])

    def _account(self, record: dict[str, Any]) -> dict[str, Any]:
        key, state = record["account"], self.state
        count = state["count"][key] = state["count"].get(key, 0) + 1
        total = state["total"][key] = state["total"].get(key, 0) + record["amount"]
        recent = state["recent"].setdefault(key, [])
        if len(recent) == 7:
            recent.clear()
        recent.append(record["amount"])
        return record | {"count": count, "total": total, "recent": sum(recent)}

    def _region(self, row: dict[str, Any]) -> dict[str, Any]:
        key, account, state = row["region"], row["account"], self.state
        count = state["r count"][key] = state["r count"].get(key, 0) + 1
        total = state["r total"][key] = state["r total"].get(key, 0) + row["amount"]
        held = state["r accounts"].setdefault(key, {})
        of_account = held[account] = held.get(account, 0) + 1
        if of_account == 3:
            del held[account]
        kept = {name: row[name] for name in ("region", "account", "seq", "amount")}
        return kept | {"count": count, "total": total, "of_account": of_account}

    def _write(self, sink: str, name: str, rows: list[dict[str, Any]]) -> None:
        path = self.out / sink / f"part-{name}-0-x.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def _rows(self) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
        state, rows = self.state, dict[tuple[str, str, str], list[dict[str, Any]]]()
        for name in ("count", "total", "r count", "r total"):
            uid = "regions" if name.startswith("r ") else "accounts"
            values = [{"key": k, "value": v} for k, v in state[name].items()]
            rows[uid, name.removeprefix("r "), "value"] = values
        rows["accounts", "recent", "list"] = [
            {"key": k, "position": i, "value": v}
            for k, values in state["recent"].items()
            for i, v in enumerate(values)
        ]
        rows["regions", "accounts", "map"] = [
            {"key": k, "map_key": account, "value": n}
            for k, held in state["r accounts"].items()
            for account, n in held.items()
        ]
        return rows


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    job.run()
    return job


def test_what_is_right_passes(job: Job) -> None:
    assert job.problems() == []


def edit(sink: str, change: Callable[[list[str]], list[str]]) -> Callable[[Job], None]:
    def apply(job: Job) -> None:
        path = sorted((job.out / sink).glob("*.json"))[FILES // 2]
        lines = path.read_text().splitlines()
        path.write_text("".join(line + "\n" for line in change(lines)))

    return apply


def add_one(line: str, column: str) -> str:
    row = json.loads(line)
    return json.dumps(row | {column: row[column] + 1})


def change_state(name: str, change: Callable[[dict[Any, Any]], None]) -> Callable[[Job], None]:
    return lambda job: change(job.state[name])


def put(value: Any) -> Callable[[dict[Any, Any]], None]:
    return lambda state: state.update({next(iter(state)): value})


@pytest.mark.parametrize("sink", ["accounts", "regions"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda lines: lines[1:], id="a row is lost"),
        pytest.param(lambda lines: [*lines, lines[0]], id="a row is there twice"),
        pytest.param(lambda lines: [], id="a file is lost"),
        pytest.param(lambda lines: [add_one(lines[0], "total"), *lines[1:]], id="a wrong total"),
        pytest.param(lambda lines: [add_one(lines[0], "seq"), *lines[1:]], id="another record"),
        pytest.param(lambda lines: [*lines, add_one(lines[-1], "count")], id="one more number"),
    ],
)
def test_wrong_output_is_seen(
    job: Job, sink: str, change: Callable[[list[str]], list[str]]
) -> None:
    edit(sink, change)(job)
    assert any(sink in line for line in job.problems())


@pytest.mark.parametrize(
    "name, change",
    [
        ("count", put(1)),
        ("total", put(10**9)),
        ("recent", put([1, 2])),
        ("recent", lambda state: state.popitem()),
        ("recent", lambda state: next(iter(state.values())).append(0)),
        ("r count", put(1)),
        ("r total", put(10**9)),
        ("r accounts", lambda state: next(iter(state.values())).popitem()),
        ("r accounts", lambda state: next(iter(state.values())).update(new=1)),
        ("r accounts", lambda state: state.popitem()),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_wrong_state_is_seen(
    job: Job, name: str, change: Callable[[dict[Any, Any]], None], complete: bool
) -> None:
    change_state(name, change)(job)
    assert job.problems(complete=complete)


def test_a_savepoint_in_the_middle_is_right_if_all_of_it_is_of_the_same_moment(job: Job) -> None:
    feeder = Feeder(job.events, job.log, seed=2)
    feeder._files = FILES
    feeder._numbers = dict(job.state["count"])
    for _ in range(GROUPS):
        feeder.feed()
    assert job.problems(complete=False) == []
    assert job.problems(complete=True)
    later = sorted(job.events.glob("*.json"))[FILES]
    job.read.append(str(later))  # the position is ahead of the state
    assert job.problems(complete=False)


def test_a_reader_sees_a_number_that_comes_again_and_a_file_that_goes(job: Job) -> None:
    def read() -> Reader:
        reader = Reader(job.out)
        reader.start()
        reader.stop()
        return reader

    reader = read()
    fed = Fed.read(job.events, job.log)
    assert (reader.problem, reader.rows(), reader.epochs) == (None, fed.total, FILES)
    path = next((job.out / "accounts").glob("*.json"))
    again = path.with_name(path.name.replace("-x", "-y"))
    again.write_text(path.read_text())
    problem = read().problem
    assert problem is not None and "twice" in problem
    reader = Reader(job.out)
    reader._look("accounts")
    again.unlink()
    reader._look("accounts")
    assert reader.problem is not None


def test_the_summary_is_json_and_markdown() -> None:
    summary = Summary(7, violations=["after 3 s: stands still"])
    summary.kills[Victim.JVM] += 2
    assert json.loads(summary.to_json())["kills"] == {"jvm": 2}
    assert "| kills | 2 (jvm 2) |" in summary.to_markdown()
    assert "- after 3 s: stands still" in summary.to_markdown()


def steps(seed: int, count: int, *without: Victim) -> list[Step]:
    return list(itertools.islice(plan(seed, without), count))


def test_the_plan_follows_from_the_seed_and_begins_with_one_of_each_kind() -> None:
    assert steps(7, 50) == steps(7, 50)
    assert steps(7, 50) != steps(8, 50)
    assert {step.kind for step in steps(7, len(Kind))} == set(Kind)


@pytest.mark.parametrize("spared", list(Victim))
def test_what_is_spared_is_not_killed(spared: Victim) -> None:
    assert all(spared not in step.victims for step in steps(7, 100, spared))
