"""What a savepoint says of itself, without Spark."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import msgspec
import pytest

from local_engine import collected, environment, source
from turnback import KeyedProcessFunction, Savepoint, SavepointWriter, ValueStateDescriptor
from turnback.checkpoint.log import slot_path
from turnback.checkpoint.manifest import Fence, Manifest, OperatorInfo, SourcePosition, encode
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    StateError,
)
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import SavedState, SavepointMetadata, StatePart
from turnback.snapshot.preflight import Verdict
from turnback.state.schema import KeySchema, StateSchema
from turnback.storage.envelope import digest
from turnback.storage.local import LocalStorage
from turnback.values.typeinfo import Types

KEY = KeySchema(("string", "long"), True)
TOTAL = StateSchema(uid="count", name="total", kind="value", key=KEY, value="long")
SEEN = StateSchema(uid="count", name="seen", kind="map", key=KEY, value="double", sub="string")
PART = StatePart("state/count/total/1.parquet", 4, digest(b"data"), 7, 0, 127)
METADATA = SavepointMetadata(
    id="0f3c",
    turnback_version="0.1.0",
    type=SavepointFormat.CANONICAL,
    job="likes",
    job_id="j1",
    attempt=2,
    checkpoint=17,
    epoch=170,
    created_ms=1_700_000_000_250,
    trigger="user",
    label="monday",
    note="before the migration",
    max_parallelism=128,
    sources={"events": SourcePosition('{"a": 1}')},
    operators=(OperatorInfo("count", "Count", "keyed_process", 2),),
    states=(SavedState(TOTAL, 7, (PART,)), SavedState(SEEN, 0)),
    watermarks={},
)


@pytest.fixture
def where(tmp_path):
    storage = LocalStorage(tmp_path / "sp")
    storage.put(PART.path, b"data")
    SavepointDirectory(storage).write_metadata(METADATA)
    return tmp_path / "sp"


@pytest.fixture
def checkpoint(tmp_path):
    """The path of a checkpoint's file."""
    storage = LocalStorage(tmp_path / "jobs" / "likes")
    common = {"job": "likes", "job_id": "j1", "attempt": 1, "created_ms": 0}
    fence = Fence(number=0, host="h", pid=1, nonce="n", **common)
    manifest = Manifest(
        number=1,
        epoch=3,
        trigger="interval",
        parent=None,
        max_parallelism=128,
        sources={},
        state=(),
        schemas=(TOTAL,),
        operators=(),
        transactions={},
        watermarks={},
        **common,
    )
    for slot in (fence, manifest):
        storage.put(slot_path(slot.number), encode(slot))
    return tmp_path / "jobs" / "likes" / "checkpoints" / "chk-1.json"


def test_what_it_says_of_itself(where):
    for way in (where, str(where), where / "_metadata.json", f"file://{where}"):
        savepoint = Savepoint.load(way)
        assert savepoint.metadata == METADATA
    assert (savepoint.job, savepoint.epoch, savepoint.max_parallelism) == ("likes", 170, 128)
    assert savepoint.created == datetime(2023, 11, 14, 22, 13, 20, 250_000, UTC)
    assert (savepoint.label, savepoint.note) == ("monday", "before the migration")
    assert savepoint.operators == METADATA.operators
    assert savepoint.sources == {"events": '{"a": 1}'}
    assert not savepoint.is_checkpoint
    assert repr(savepoint) == f"<savepoint {savepoint.location} of job 'likes', epoch 170>"


def test_its_states(where):
    seen, total = Savepoint.load(where).states()
    assert (total.uid, total.name, total.kind) == ("count", "total", "value")
    assert (total.key_type, total.key_columns) == ("string, bigint", True)
    assert (total.map_key_type, total.value_type) == (None, "bigint")
    assert (total.rows, total.bytes) == (7, 4)
    assert (seen.map_key_type, seen.value_type, seen.rows) == ("string", "double", 0)
    assert Savepoint.load(where).views() == {
        "count_seen": ("count", "seen"),
        "count_total": ("count", "total"),
    }


def test_a_checkpoint_is_the_same_thing(checkpoint):
    found = Savepoint.load(checkpoint)
    assert found.is_checkpoint
    assert (found.job, found.epoch, found.label, found.note) == ("likes", 3, None, None)
    assert isinstance(found.metadata, Manifest)
    (state,) = found.states()
    assert (state.name, state.rows, state.bytes) == ("total", None, None)
    assert found.verify() == []
    with pytest.raises(
        ConfigurationError,
        match="is a checkpoint, and only savepoints can be deleted: job 'likes' deletes",
    ):
        found.delete()
    assert checkpoint.exists()


def test_a_checkpoint_that_is_not_there(checkpoint):
    with pytest.raises(
        CheckpointNotFoundError, match=r"chk-0 is the start.*Available checkpoints: chk-1"
    ):
        Savepoint.load(checkpoint.with_name("chk-0.json"))
    with pytest.raises(
        CheckpointNotFoundError, match=r"chk-9 is missing.*Available checkpoints: chk-1"
    ):
        Savepoint.load(checkpoint.with_name("chk-9.json"))


def test_a_directory_that_is_not_there_partial_or_damaged(where, tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="does not exist or is empty"):
        Savepoint.load(tmp_path / "nowhere")
    metadata = where / "_metadata.json"
    text = metadata.read_text()
    metadata.write_text(text.replace('"epoch": 170', '"epoch": 171'))
    with pytest.raises(CorruptFileError, match="checksum"):
        Savepoint.load(where)
    metadata.unlink()
    with pytest.raises(CheckpointNotFoundError, match="partial savepoint"):
        Savepoint.load(where)
    with pytest.raises(ConfigurationError, match="location must be a path"):
        Savepoint.load(None)


def test_names_that_are_not_there(where):
    savepoint = Savepoint.load(where)
    with pytest.raises(StateError, match=r"no state of an operator 'cuont'; did you mean 'count'"):
        savepoint.state("cuont", "total")
    with pytest.raises(StateError, match=r"has no state 'totals'; did you mean 'total'"):
        savepoint.state("count", "totals")


def test_edited_and_missing_files_are_found(where):
    savepoint = Savepoint.load(where)
    assert savepoint.verify() == []
    file = where / PART.path
    file.write_bytes(b"dada")
    (problem,) = savepoint.verify()
    assert problem.path == PART.path
    assert "checksum" in problem.reason
    file.unlink()
    (problem,) = savepoint.verify()
    assert problem.reason.endswith("is missing")


def test_deleting_it(where):
    Savepoint.load(where).delete()
    assert [p for p in where.rglob("*") if p.is_file()] == []
    with pytest.raises(CheckpointNotFoundError):
        Savepoint.load(where)


class Count(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)

    def process_element(self, value, ctx):
        yield value


def program(**declared):
    env = environment(2)
    rows = source(env, "events", "k string, n bigint")
    function = type("Count", (Count,), declared)()
    collected(rows.key_by("k", "n").process(function, "k string, n bigint").uid("count"), "out")
    return env


def test_the_preflight(where):
    savepoint = Savepoint.load(where)
    env = program(seen=ValueStateDescriptor("seen", int))
    report = savepoint.check(env)
    assert not report.ok
    assert [row.state for row in report.of(Verdict.INCOMPATIBLE)] == ["seen"]
    assert [row.state for row in report.of(Verdict.RESTORED)] == ["total", ""]
    without = program()
    assert [row.state for row in savepoint.check(without).of(Verdict.UNCLAIMED)] == ["seen"]
    assert savepoint.check(without, allow_non_restored_state=["count/seen"]).ok
    renamed = program(total=ValueStateDescriptor("sum", int))
    allowed = savepoint.check(renamed.plan(), {"count/total": "count/sum"}, True)
    assert allowed.ok
    assert [row.state for row in allowed.of(Verdict.RESTORED)] == ["sum", ""]


def test_a_writer_refuses_what_is_wrong_at_once(where):
    with pytest.raises(ConfigurationError, match="whole number above 0"):
        SavepointWriter.new(0)
    with pytest.raises(ConfigurationError, match="at most 32768"):
        SavepointWriter.new(40_000)
    with pytest.raises(ConfigurationError, match="job name"):
        SavepointWriter.new(job="")
    writer = SavepointWriter.from_existing(where)
    descriptor = ValueStateDescriptor("total", Types.LONG())
    with pytest.raises(ConfigurationError, match="expected a batch DataFrame, got 'rows'"):
        writer.with_state("count", descriptor, "rows")
    with pytest.raises(ConfigurationError, match="with_state takes a descriptor"):
        writer.with_state("count", "total", "rows")
    with pytest.raises(StateError, match="did you mean 'count'"):
        writer.remove_operator("coutn")
    with pytest.raises(ConfigurationError, match="is not JSON"):
        writer.with_sources({"events": "{"})
    with pytest.raises(ConfigurationError, match="list of files"):
        writer.with_sources({"events": {"logOffset": 3}})
    with pytest.raises(ConfigurationError, match="no position of source 'evnts'"):
        writer.without_sources("evnts")
    assert Savepoint.load(where).metadata == METADATA


@pytest.mark.slow
def test_a_savepoint_can_be_read_without_loading_spark(where):
    code = (
        "import sys; from turnback import Savepoint, SavepointWriter, diff; "
        f"print(len(Savepoint.load({str(where)!r}).states())); "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j')]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("2", "")


def test_info_survives_types_of_other_versions(where):
    strange = msgspec.structs.replace(TOTAL, value={"tensor": [3]})
    metadata = msgspec.structs.replace(METADATA, states=(SavedState(strange, 7, (PART,)),))
    (where / "_metadata.json").unlink()
    SavepointDirectory(LocalStorage(where)).write_metadata(metadata)
    (state,) = Savepoint.load(where).states()
    assert state.value_type == "{'tensor': [3]}"
