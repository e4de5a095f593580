"""What may be asked for of malformed records, and in which words all else is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turnback import CollectSink, DataStream, StreamExecutionEnvironment, WatermarkStrategy
from turnback.checkpoint.manifest import SourcePosition, add_malformed
from turnback.connectors import JsonRowDeserializationSchema, SimpleStringSchema
from turnback.connectors.kafka import KafkaSource
from turnback.errors import MalformedRecordError, PlanError
from turnback.plan.bad_records import ErrorPolicy, malformed_error
from turnback.spark.sources import malformed_record
from turnback.testing import LocalEngine


@pytest.fixture
def env(tmp_path: Path) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(None, tmp_path, engine=LocalEngine())


def files(env: StreamExecutionEnvironment, path: Path, format: str = "json", **how: Any) -> Any:
    return env.from_files(path, format, how.pop("schema", "k string"), "events", **how)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"on_malformed": "drop"}, "takes one of 'fail', 'skip', 'dead_letter', got 'drop'"),
        ({"on_malformed": 1}, "takes one of 'fail', 'skip', 'dead_letter', got 1"),
        ({"format": "parquet", "on_malformed": "skip"}, "nothing is parsed in parquet files"),
        ({"format": "text", "on_malformed": "dead_letter"}, "'dead_letter' is for csv and json"),
        ({"MODE": "DROPMALFORMED", "on_malformed": "skip"}, "MODE also defines"),
        ({"columnNameOfCorruptRecord": "c", "on_malformed": "fail"}, "or on_malformed"),
        (
            {"schema": "k string, _corrupt_record string", "on_malformed": "skip"},
            "_corrupt_record also defines",
        ),
    ],
)
def test_what_from_files_refuses(env, tmp_path, how, why):
    with pytest.raises(PlanError, match=f"from_files: .*{re.escape(why)}"):
        files(env, tmp_path, **how)


def test_what_from_files_does_if_nothing_is_said(env, tmp_path):
    assert files(env, tmp_path)._node.on_malformed is ErrorPolicy.FAIL
    assert files(env, tmp_path, "parquet", on_malformed="fail")._node.on_malformed is None
    own = files(env, tmp_path, schema="k string, _corrupt_record string")
    assert own._node.on_malformed is None


def test_malformed_records_have_to_be_read(env, tmp_path):
    files(env, tmp_path, on_malformed="dead_letter").sink_to(CollectSink()).uid("out")
    with pytest.raises(PlanError, match=r"nothing reads its dead letters; .*on_malformed=.skip"):
        env.plan()


@pytest.mark.parametrize("policy", [None, "skip"])
def test_malformed_records_have_to_be_there(env, tmp_path, policy):
    stream = files(env, tmp_path, on_malformed=policy)
    stream.dead_letters().sink_to(CollectSink()).uid("out")
    with pytest.raises(PlanError, match=r"but it produces none; .*on_malformed=.dead_letter"):
        env.plan()


def test_an_operator_behind_a_source_has_dead_letters_of_its_own(env, tmp_path):
    events = files(env, tmp_path, on_malformed="dead_letter")
    events.dead_letters().sink_to(CollectSink()).uid("malformed")
    events.filter(bool).name("f").dead_letters().sink_to(CollectSink()).uid("out")
    with pytest.raises(PlanError, match=r"\(f\) are read, but it produces none; call on_error"):
        env.plan()


JSON = JsonRowDeserializationSchema.builder().type_info("k string")


def kafka(schema: Any) -> KafkaSource:
    builder = KafkaSource.builder().set_bootstrap_servers("a:1").set_topics("t")
    return builder.set_value_only_deserializer(schema).build()


def test_the_policy_of_records():
    source = kafka(JsonRowDeserializationSchema(JSON.build().type_info))
    assert source.malformed_policy(None) is ErrorPolicy.FAIL
    assert source.malformed_policy("dead_letter") is ErrorPolicy.DEAD_LETTER
    ignoring = kafka(JsonRowDeserializationSchema(JSON.build().type_info, True))
    assert ignoring.malformed_policy(None) is ErrorPolicy.SKIP
    assert ignoring.malformed_policy("skip") is ErrorPolicy.SKIP
    for policy in ("dead_letter", "fail"):
        with pytest.raises(PlanError, match=r"without ignore_parse_errors\(\)"):
            ignoring.malformed_policy(policy)
    texts = kafka(SimpleStringSchema())
    assert texts.malformed_policy("fail") is None
    with pytest.raises(PlanError, match="values are not parsed, so none is malformed"):
        texts.malformed_policy("skip")
    with pytest.raises(PlanError, match="from_source: on_malformed takes one of"):
        source.malformed_policy("drop")


def test_an_error_shows_the_beginning_of_a_record():
    error = malformed_error("events", "file:///in/a%20b.json", "x" * 300)
    assert f": /in/a b.json: '{'x' * 200}...'. Fix" in str(error)


def test_an_error_of_spark_is_told_with_its_source():
    body = msgspec.json.encode({"uid": "events", "place": "topic t", "text": "ä{"}).hex().upper()
    told = malformed_record(ValueError(f"at x\n<<turnback malformed {body} demroflam>>\nat y"))
    assert isinstance(told, MalformedRecordError)
    assert "source 'events': a record does not match its schema: topic t: 'ä{'" in str(told)
    assert malformed_record(ValueError("something else")) is None


def test_a_position_has_the_count_of_all_before_it():
    """One of a version that did not count has none."""
    old = msgspec.json.decode(b'{"offset": "1", "identity": "x"}', type=SourcePosition)
    after = {"a": SourcePosition("2"), "b": SourcePosition("3"), "c": SourcePosition("4")}
    before = {"a": old, "b": SourcePosition("1", malformed=5)}
    counted = add_malformed(after, before, {"a": 2, "c": 1})
    assert {uid: (p.offset, p.malformed) for uid, p in counted.items()} == {
        "a": ("2", 2),
        "b": ("3", 5),
        "c": ("4", 1),
    }


def test_timestamps_do_not_hide_malformed_records(env, tmp_path):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    stream: DataStream = files(env, tmp_path, schema="n bigint", on_malformed="dead_letter")
    stamped = stream.assign_timestamps_and_watermarks(strategy).uid("time")
    stamped.dead_letters().sink_to(CollectSink()).uid("malformed")
    stamped.sink_to(CollectSink()).uid("out")
    assert [op.kind.value for op in env.plan().operators()][:2] == ["source", "timestamps"]
