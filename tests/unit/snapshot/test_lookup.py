"""What a state holds for one key, while its job goes on, is damaged or does not exist."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fake_job import FakeJob, entries, schema
from manual_clock import ManualClock
from turnback import look_up
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    JobNotFoundError,
    StateError,
)
from turnback.snapshot import lookup
from turnback.state.delta import DeltaBuilder
from turnback.state.expiry import encode_time
from turnback.state.files import StorageRef
from turnback.state.schema import StateTtl
from turnback.storage.open import open_storage
from turnback.values.typeinfo import Types
from turnback.views.browse import look_up as look_up_text
from turnback.views.job import Job

TOTAL = schema()
SEEN = schema("seen", "list", Types.STRING())
BY_DAY = schema("by day", "map", Types.LONG(), sub=Types.LONG())


@pytest.fixture
def job(tmp_path):
    made = FakeJob(str(tmp_path / "jobs"))
    made.attempt()
    return made


def get(job, name, key, **more):
    return look_up(job.name, "count", name, key, root=job.root, **more)


def test_the_newest_checkpoint_counts(job):
    for n in range(3):
        job.checkpoint((TOTAL, {"a": n, f"only {n}": n}))
    found = get(job, "total", "a")
    assert (found.found, found.value, found.epoch, found.snapshot) == (True, 2, 3, "chk-4")
    assert get(job, "total", "only 0").value == 0
    missing = get(job, "total", "nobody")
    assert (missing.found, missing.value, missing.next) == (False, None, None)


def test_none_is_a_value(job):
    state = schema("maybe", value=Types.LONG())
    job.checkpoint((state, {"a": None}))
    assert (get(job, "maybe", "a").found, get(job, "maybe", "a").value) == (True, None)
    assert not get(job, "maybe", "b").found


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_pages_hold_every_entry_once(job, limit):
    elements, days = [f"e{i}" for i in range(20)], {day: day * day for day in range(-5, 15)}
    job.checkpoint((SEEN, {"a": elements[:12], "b": ["x"]}), (BY_DAY, {"a": days}))
    job.epoch += 1
    job.checkpoint((SEEN, {"a": elements[12:]}))
    listed, mapped = [], {}
    for name, into in (("seen", listed.extend), ("by day", mapped.update)):
        after = None
        while True:
            page = get(job, name, "a", after=after, limit=limit)
            assert len(page.value) <= limit
            into(page.value)
            if page.next is None:
                break
            after = page.next
    assert (listed, mapped) == (elements, days)


def test_pages_are_of_one_checkpoint_as_long_as_it_is_there(job):
    job.checkpoint((BY_DAY, {"a": dict.fromkeys(range(6), 1)}))
    first = get(job, "by day", "a", limit=2)
    job.checkpoint((BY_DAY, {"a": dict.fromkeys(range(8), 2)}))
    second = get(job, "by day", "a", limit=2, after=first.next)
    assert (second.snapshot, second.value) == ("chk-2", {2: 1, 3: 1})
    job.log.remove(2)
    third = get(job, "by day", "a", limit=9, after=second.next)
    assert (third.snapshot, third.value) == ("chk-3", {4: 2, 5: 2, 6: 2, 7: 2})


def test_people_and_programs_see_the_same(job):
    keys = [Types.STRING(), Types.LONG()]
    state = schema("seen", "list", Types.STRING(), keys)
    job.checkpoint((state, {("de", 1): ["x", "y", "z"]}))
    seen = Job(job.directory, clock=job.clock)
    for text in ('["de", 1]', "de,1"):
        page = look_up_text(seen, "count", "seen", text, limit=2)
        assert page.rows == ((0, "x"), (1, "y"))
        page = look_up_text(seen, "count", "seen", text, limit=2, after=page.next)
        assert (page.rows, page.next, page.columns) == (((2, "z"),), None, ("position", "value"))
    row = Types.ROW_NAMED(["country", "n"], keys)
    job.checkpoint((schema("rows", keys=[row], columns=False), {("de", 1): 7}))
    assert look_up_text(seen, "count", "rows", '{"country": "de", "n": 1}').rows == ((7,),)
    assert get(job, "rows", ("de", 1)).value == 7


def timed(kind, name):
    state = schema(name, kind, sub=Types.STRING() if kind == "map" else None)
    return replace(state, ttl=StateTtl(ms=1_000, shows_expired=True))


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_what_has_expired_is_not_there(tmp_path, kind):
    """Each value counts by itself; also in a savepoint, which holds times as a column."""
    clock = ManualClock(1_000_000)
    job = FakeJob(str(tmp_path / "jobs"), clock=clock)
    job.attempt()
    state = timed(kind, "state")
    held = {"value": {"a": 1, "b": 2}, "list": {"a": [1, 2]}, "map": {"a": {"x": 1, "y": 2}}}[kind]
    groups, keys, subs, values = entries(replace(state, ttl=None), held, job.groups)
    times = [clock.now_ms() - 1_000, clock.now_ms() - 999]
    values = [encode_time(t) + v for t, v in zip(times, values, strict=True)]
    builder = DeltaBuilder()
    builder.add(state, groups, keys, subs, values)
    built = builder.build()
    job.storage.put("state/1/1.arrow", built.data)
    job.files, job.epoch = [built.file("state/1/1.arrow", 1)], 1
    job._append(tuple(job.files), (state,))
    seen = Job(job.directory, clock=clock)
    rows = [look_up_text(seen, "count", "state", key).rows for key in held]
    assert [[row[-2] for row in found] for found in rows] == {"value": [[], [2]]}.get(kind, [[2]])
    clock.advance(1)
    assert not any(look_up_text(seen, "count", "state", key).found for key in held)


# -- the job goes on meanwhile


def test_a_checkpoint_that_is_dropped_meanwhile_is_replaced_by_a_newer_one(job, monkeypatch):
    """Again and again, each time after it was found and before its file is read."""
    job.checkpoint((TOTAL, {"a": 0}))
    found_state, times = lookup.confirmed_state, []

    def overtaken(directory, ref):
        snapshot = found_state(directory, ref)
        if len(times) < 5:
            times.append(snapshot.name)
            old, job.files = job.files, []
            job.checkpoint((TOTAL, {"a": len(times)}))
            job.log.remove(snapshot.manifest.number)
            for file in old:
                job.storage.delete(file.path)
        return snapshot

    monkeypatch.setattr(lookup, "confirmed_state", overtaken)
    assert get(job, "total", "a").value == 5
    assert len(set(times)) == 5


def test_a_missing_file_of_the_newest_checkpoint_is_reported(job):
    job.checkpoint((TOTAL, {"a": 0}))
    job.storage.delete(job.files[0].path)
    with pytest.raises(CorruptFileError, match=r"chk-2 of job 'likes' needs a file.*verify"):
        get(job, "total", "a")


def test_a_damaged_file_is_reported(job):
    job.checkpoint((TOTAL, {"a": 0}))
    data = bytearray(job.storage.get(job.files[0].path))
    data[len(data) // 2] ^= 1
    job.storage.put(job.files[0].path, bytes(data))
    with pytest.raises(CorruptFileError, match=r"state/1/1\.arrow"):
        get(job, "total", "a")
    job.storage.put("checkpoints/chk-2.json", b"{nonsense")
    with pytest.raises(CorruptFileError, match="chk-2"):
        get(job, "total", "a")


def test_a_job_that_went_back_holds_what_it_went_back_to(job, tmp_path):
    job.checkpoint((TOTAL, {"a": 1}))
    saved = job.savepoint(str(tmp_path / "sp"), (TOTAL, {"a": 70}))
    job.checkpoint((TOTAL, {"a": 2}))
    job.attempt(checkpoint=2)
    assert (get(job, "total", "a").value, get(job, "total", "a").snapshot) == (1, "chk-2")
    job.attempt(snapshot=saved.storage.uri)
    found = get(job, "total", "a")
    assert (found.value, found.snapshot) == (70, saved.storage.uri)
    job.checkpoint((TOTAL, {"a": 3}))
    assert get(job, "total", "a").value == 3


def test_a_job_that_ended_and_deleted_its_checkpoints_has_its_savepoint(job, tmp_path):
    job.checkpoint((TOTAL, {"a": 1}))
    job.savepoint(str(tmp_path / "sp"), (TOTAL, {"a": 70}))
    job.log.end()
    job.log.remove(2)
    assert get(job, "total", "a").value == 70


# -- what cannot be looked up


def test_what_is_not_there_is_named_with_what_is(job, tmp_path):
    with pytest.raises(
        CheckpointNotFoundError, match="'likes' has not completed a checkpoint since"
    ):
        get(job, "total", "a")
    job.checkpoint((TOTAL, {"a": 1}))
    with pytest.raises(StateError, match="no state of an operator 'cuont'; did you mean 'count'"):
        look_up("likes", "cuont", "total", "a", root=job.root)
    with pytest.raises(StateError, match="no state 'totl'; did you mean 'total'"):
        get(job, "totl", "a")
    with pytest.raises(JobNotFoundError, match=r"no job 'like' in .*; did you mean 'likes'"):
        look_up("like", "count", "total", "a", root=job.root)
    with pytest.raises(JobNotFoundError, match="available jobs: none"):
        look_up("like", "count", "total", "a", root=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"key": 5}, "total.*5 is not a key of type string"),
        ({"key": None}, "None is not a key of type string"),
        ({"key": ["a"]}, "not a key of type string"),
        ({"limit": 0}, "at least 1"),
        ({"limit": True}, "at least 1"),
        ({"limit": "9"}, "at least 1"),
        ({"after": "7"}, "invalid cursor '7'"),
        ({"after": 7}, "invalid cursor 7"),
        ({"after": "1.abc"}, "invalid cursor"),
        ({"root": 5}, "root"),
        ({"job": 5}, "job"),
    ],
)
def test_what_cannot_be_used_is_refused(job, wrong, message):
    job.checkpoint((TOTAL, {"a": 1}))
    arguments = {"job": "likes", "uid": "count", "state": "total", "key": "a", "root": job.root}
    with pytest.raises(ConfigurationError, match=message):
        look_up(**(arguments | wrong))


@pytest.mark.slow
def test_of_many_rows_only_those_of_the_key_are_decoded(job):
    """A state of 200,000 keys in several batches: the rows of others never leave the file."""
    job.checkpoint((TOTAL, {f"user {i}": i for i in range(200_000)}))
    snapshot = lookup.confirmed_state(job.directory, StorageRef(job.storage.uri))
    group, data = lookup.encode_key(TOTAL, "user 77777", job.groups)
    (table,) = snapshot.rows(snapshot.state("count", "total")).rows(group, group, data)
    assert table.num_rows == 1
    assert get(job, "total", "user 77777").value == 77777
    assert open_storage(job.storage.uri).list("state") == ["state/1/1.arrow"]
