"""Partitioned files of a job: Spark names the directories alike, and reads equal values."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from turnback import FileSink, StreamExecutionEnvironment

SCHEMA = "shop string, n bigint, day date, hour smallint, paid boolean"
SHOPS = ["a b", "07", "x/y", "%41", "..", "a=b", "ünï", "q\"'*?#", "[a]{b}^", "C:\\d", "\x01\t\n"]
SHOPS += ["\x7f", "~!@$&()+,;|`<>", "__HIVE_DEFAULT", "-1", "2026-11-18 07:00:00"]
ROWS = [(shop, n, date(2026, 11, n % 2 + 1), n % 3, n % 2 == 0) for n, shop in enumerate(SHOPS)]
ROWS += [(None, 100, None, None, None), ("a b", 101, None, -7, True)]


def folders(root: Path) -> set[str]:
    return {str(path.parent.relative_to(root)) for path in root.rglob("*.parquet")}


def test_spark_reads_what_a_job_has_partitioned(session, tmp_path):
    rows = [dict(zip(("shop", "n", "day", "hour", "paid"), row, strict=True)) for row in ROWS]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rows.json").write_text("\n".join(json.dumps(r, default=str) for r in rows))
    env = StreamExecutionEnvironment.get_execution_environment(
        spark=session, root=str(tmp_path / "jobs")
    )
    env.set_parallelism(2).enable_checkpointing(10)
    columns = ["day", "hour", "paid", "shop"]
    sink = FileSink(tmp_path / "out", partition_by=columns)
    env.from_files(tmp_path / "in", "json", SCHEMA, uid="in").sink_to(sink).uid("out")
    env.execute("partitioned", bounded=True)

    read = session.read.schema(SCHEMA).parquet(str(tmp_path / "out"))
    found = read.select("shop", "n", "day", "hour", "paid").orderBy("n").collect()
    assert [tuple(row) for row in found] == ROWS
    by_spark = tmp_path / "by-spark"
    session.createDataFrame(ROWS, SCHEMA).write.partitionBy(*columns).parquet(str(by_spark))
    assert folders(tmp_path / "out") == folders(by_spark)


@pytest.mark.parametrize("name", ["events[1]", "events{1,2}", "a\\b"])
def test_a_directory_of_the_input_is_no_pattern(session, tmp_path, name):
    """Else Spark reads what the pattern matches, or waits forever for something to match."""
    for directory, shop in {name: "a", "events1": "b"}.items():
        place = tmp_path / directory / f"shop={shop}"
        place.mkdir(parents=True)
        (place / "one.json").write_text('{"n": 1}\n')
    env = StreamExecutionEnvironment.get_execution_environment(
        spark=session, root=str(tmp_path / "jobs")
    )
    env.set_parallelism(1).enable_checkpointing(10)
    events = env.from_files(tmp_path / name, "json", "n bigint, shop string", uid="in")
    events.sink_to(FileSink(tmp_path / "out", "json")).uid("out")
    env.execute("read", bounded=True)
    (file,) = (tmp_path / "out").glob("*.json")
    assert file.read_text() == '{"n":1,"shop":"a"}\n'
