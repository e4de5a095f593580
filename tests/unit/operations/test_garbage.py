"""What nothing needs is found and removed; what anything may need is not."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from fake_job import Driver, dead, elsewhere, living
from turnback.errors import ConfigurationError, StillNeededError
from turnback.job.request import RequestKind, RequestOutcome, RequestSpec, RequestState
from turnback.job.status import JobState
from turnback.operations.garbage import GarbageKind, remove, scan
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import file_name
from turnback.storage.local import LocalStorage
from turnback.storage.open import open_storage
from turnback.views.jobs import Jobs
from verification import verify

_NAMES = itertools.count()


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "all jobs")
    return f"memory://garbage-test-{next(_NAMES)}/jobs"


def find_garbage(*where):
    return list(scan(*where).garbage)


def everything(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


def littered(root: object, **how: object) -> Driver:
    """A job with a checkpoint, and files that no checkpoint needs."""
    driver = Driver(root, **how).attempt()  # type: ignore[arg-type]
    driver.file("orphan", b"12345")
    driver.storage.put("offsets/1/log", b"123")
    driver.attempt()
    driver.checkpoint(driver.file("kept"))
    driver.file("later", b"1234567")
    return driver


def test_files_that_no_checkpoint_needs_are_found_and_removed(root: str) -> None:
    driver = littered(root).say(JobState.CANCELED)
    found = find_garbage(Jobs(root))
    assert [(g.kind, g.path.rpartition("wordcount/")[2], g.bytes) for g in found] == [
        (GarbageKind.FILES, "offsets/1", 3),
        (GarbageKind.FILES, "state/1", 5),
        (GarbageKind.FILES, "state/2", 7),
    ]
    assert {g.job for g in found} == {"wordcount"}
    before = driver.storage.list()
    assert "state/1/orphan" in before  # nothing is touched by looking
    for garbage in found:
        remove(garbage)
    left = ["offsets/1/log", "state/1/orphan", "state/2/later"]
    assert driver.storage.list() == [path for path in before if path not in left]
    assert verify(driver.storage) == []
    assert find_garbage(Jobs(root)) == []


def test_garbage_is_plain_data(root: str) -> None:
    littered(root).say(JobState.CANCELED)
    findings = scan(Jobs(root))
    assert msgspec.json.decode(msgspec.json.encode(findings), type=type(findings)) == findings


@pytest.mark.parametrize("state", [s for s in JobState if s.is_terminal])
def test_of_a_job_that_ended_garbage_is_found(tmp_path: Path, state: JobState) -> None:
    littered(tmp_path, process=elsewhere()).say(state)
    assert len(find_garbage(Jobs(str(tmp_path)))) == 3


def test_of_a_lost_job_garbage_is_found_unless_it_is_started_again(tmp_path: Path) -> None:
    driver = littered(tmp_path, process=dead()).say(JobState.RUNNING)
    assert len(find_garbage(Jobs(str(tmp_path)))) == 3
    with living() as supervisor:
        driver.say(JobState.RUNNING, supervisor=supervisor)
        findings = scan(Jobs(str(tmp_path)))
    assert findings.garbage == ()
    assert "supervisor" in findings.skipped[0].reason


@pytest.mark.parametrize("state", [s for s in JobState if not s.is_terminal])
def test_a_job_that_may_run_is_left_alone(tmp_path: Path, state: JobState) -> None:
    littered(tmp_path, name="here").say(state)
    far = littered(tmp_path, name="there", process=elsewhere()).say(state)
    far.clock.advance(10**9)
    findings = scan(Jobs(str(tmp_path), clock=far.clock))
    assert findings.garbage == ()
    here, there = findings.skipped
    assert (here.job, there.job) == ("here", "there")
    assert state.value in here.reason
    assert "another-host" in there.reason


def test_a_job_that_is_just_being_made_is_left_alone(tmp_path: Path) -> None:
    Driver(tmp_path).storage.put("state/1/x", b"")
    findings = scan(Jobs(str(tmp_path)))
    assert findings.garbage == ()
    assert "starting" in findings.skipped[0].reason


@pytest.mark.parametrize("file", ["job.json", "status.json", "checkpoints/chk-3.json"])
def test_what_cannot_be_read_may_need_anything(tmp_path: Path, file: str) -> None:
    driver = littered(tmp_path).say(JobState.CANCELED)
    littered(tmp_path, name="other").say(JobState.CANCELED)
    assert driver.log.numbers() == [1, 2, 3]
    (driver.path / file).write_bytes(b"damaged")
    findings = scan(Jobs(str(tmp_path)))
    assert {g.job for g in findings.garbage} == {"other"}
    assert [skipped.job for skipped in findings.skipped] == ["wordcount"]


def test_a_damaged_fence_below_the_newest_leaves_the_job_alone(tmp_path: Path) -> None:
    driver = littered(tmp_path).say(JobState.CANCELED)
    (driver.path / "checkpoints/chk-2.json").write_bytes(b"damaged")
    findings = scan(Jobs(str(tmp_path)))
    assert findings.garbage == ()
    assert "chk-2" in findings.skipped[0].reason


def test_files_of_attempts_that_the_log_does_not_know_stay(tmp_path: Path) -> None:
    """A driver that starts in this moment has them."""
    driver = littered(tmp_path).say(JobState.CANCELED)
    for path in ("state/3/new", "state/x/1", "state/file", "sinks/s/1", "state/0/a", "other/1/x"):
        driver.storage.put(path, b"")
    found = find_garbage(Jobs(str(tmp_path)))
    paths = {Path(garbage.path).relative_to(driver.path).as_posix() for garbage in found}
    assert paths == {"offsets/1", "state/1", "state/2"}


def test_without_any_slot_nothing_is_certain(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.storage.put("state/1/x", b"")
    driver.say(JobState.CANCELED)
    assert find_garbage(Jobs(str(tmp_path))) == []


def test_removal_looks_again(tmp_path: Path) -> None:
    driver = littered(tmp_path).say(JobState.CANCELED)
    found = find_garbage(Jobs(str(tmp_path)))
    driver.say(JobState.RUNNING)
    for garbage in found:
        with pytest.raises(StillNeededError, match="RUNNING"):
            remove(garbage)
    assert driver.storage.get("state/1/orphan") == b"12345"
    # A checkpoint that needs one of the files meanwhile.
    needed = driver.file("later", b"1234567")
    driver.checkpoint(needed, epoch=2)
    driver.say(JobState.CANCELED)
    for garbage in found:
        remove(garbage)
    assert verify(driver.storage) == []
    assert driver.storage.list("state") == ["state/2/kept", "state/2/later"]
    (driver.path / "checkpoints/chk-4.json").write_bytes(b"")
    with pytest.raises(StillNeededError, match="chk-4"):
        remove(found[1])


def test_a_driver_that_starts_while_files_are_listed_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = littered(tmp_path).say(JobState.CANCELED)
    found = find_garbage(Jobs(str(tmp_path)))
    listing = LocalStorage.sizes

    def start_and_list(self: LocalStorage, prefix: str = "") -> dict[str, int]:
        monkeypatch.undo()
        driver.say(JobState.CREATED).attempt().file("unconfirmed")
        return listing(self, prefix)

    monkeypatch.setattr(LocalStorage, "sizes", start_and_list)
    with pytest.raises(StillNeededError, match="RUNNING"):
        remove(next(g for g in found if g.path.endswith("state/1")))
    assert {"state/1/orphan", "state/3/unconfirmed"} <= set(driver.storage.list())


@pytest.mark.parametrize("path", ["checkpoints", "", "state", "state/1/..", "../other/state/1"])
def test_only_what_attempts_wrote_is_ever_removed(tmp_path: Path, path: str) -> None:
    driver = littered(tmp_path).say(JobState.CANCELED)
    littered(tmp_path, name="other").say(JobState.CANCELED)
    before = everything(tmp_path)
    garbage = find_garbage(Jobs(str(tmp_path)))[0]
    forged = msgspec.structs.replace(garbage, path=f"{driver.path}/{path}", job="wordcount")
    with pytest.raises(StillNeededError):
        remove(forged)
    with pytest.raises(StillNeededError):
        remove(msgspec.structs.replace(garbage, path="/etc", job="wordcount"))
    with pytest.raises(StillNeededError):
        remove(msgspec.structs.replace(garbage, job="nobody"))
    assert everything(tmp_path) == before


def test_links_among_the_files_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("data")
    driver = littered(tmp_path / "root").say(JobState.CANCELED)
    (driver.path / "state/1/link").symlink_to(outside)
    findings = scan(Jobs(str(tmp_path / "root")))
    assert findings.garbage == ()
    assert "link" in findings.skipped[0].reason
    assert (outside / "precious").read_text() == "data"


# -- half-written files


def test_half_written_files_are_found_and_removed(tmp_path: Path) -> None:
    driver = Driver(tmp_path).say(JobState.CANCELED)
    half = driver.path / "state/1/.turnback-tmp-1"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    (driver.path / ".turnback-tmp-2").write_bytes(b"a file")
    (garbage,) = find_garbage(Jobs(str(tmp_path)))
    assert (garbage.kind, garbage.bytes) == (GarbageKind.HALF_WRITTEN, 10)
    assert half.exists()
    driver.say(JobState.RUNNING)
    with pytest.raises(StillNeededError):
        remove(garbage)
    driver.say(JobState.CANCELED)
    remove(garbage)
    assert not half.exists()
    assert find_garbage(Jobs(str(tmp_path))) == []


# -- savepoints


def asked(driver: Driver, state: RequestState | None) -> str:
    request = driver.requests.submit(RequestSpec(RequestKind.SAVEPOINT))
    if state is not None:
        driver.requests.finish(request.id, RequestOutcome(state))
    return request.id


def test_a_savepoint_that_was_given_up_is_removed(root: str, tmp_path: Path) -> None:
    driver = Driver(root).say(JobState.FAILED)
    place = "memory://sp-" + root[9:] if root.startswith("memory") else str(tmp_path / "sp dir")
    driver.partial(f"{place}/savepoint-1", asked(driver, RequestState.FAILED))
    driver.savepoint(f"{place}/good", "good")
    (garbage,) = find_garbage(Jobs(root), place)
    assert (garbage.kind, garbage.path) == (GarbageKind.SAVEPOINT, f"{place}/savepoint-1")
    assert (garbage.job, garbage.bytes) == ("wordcount", 4 + len("1700000000000-") + 12 + 6)
    storage = open_storage(place)
    storage.put("savepoint-1/notes.txt", b"somebody's own")
    remove(garbage)
    assert storage.list() == ["good/_metadata.json", "savepoint-1/notes.txt"]
    assert find_garbage(Jobs(root), place) == []


def test_one_that_several_drivers_began_goes_with_all_their_marks(
    root: str, tmp_path: Path
) -> None:
    driver = Driver(root).say(JobState.FAILED)
    place = "memory://sp-" + root[9:] if root.startswith("memory") else str(tmp_path / "sp")
    id_ = asked(driver, RequestState.FAILED)
    first, second = (SavepointDirectory(open_storage(f"{place}/one")) for _ in range(2))
    first.begin(id_)
    second.begin(id_)
    first.abandon()  # the second one's mark is left, and tells enough
    second.storage.put(f"state/count/{file_name(second.writer, 'a.parquet')}", b"half")
    (garbage,) = find_garbage(Jobs(root), place)
    remove(garbage)
    assert second.storage.list() == []


@pytest.mark.parametrize("case", ["open", "live", "supervised", "elsewhere", "unknown", "damaged"])
def test_a_savepoint_that_may_be_completed_stays(tmp_path: Path, case: str) -> None:
    process = {"supervised": dead, "open": dead, "elsewhere": elsewhere}.get(case, lambda: None)()
    driver = Driver(tmp_path / "jobs", process=process).say(JobState.RUNNING)
    id_ = asked(driver, None if case == "open" else RequestState.FAILED)
    driver.partial(tmp_path / "sp/one", "unknown-id" if case == "unknown" else id_)
    if case in ("unknown", "damaged"):
        driver.say(JobState.FAILED)
    if case == "damaged":
        (driver.path / "status.json").write_bytes(b"{")
    with living() as supervisor:
        if case == "supervised":
            driver.say(JobState.RUNNING, supervisor=supervisor)
        findings = scan(Jobs(str(tmp_path / "jobs")), str(tmp_path / "sp"))
    assert [g for g in findings.garbage if g.kind is GarbageKind.SAVEPOINT] == []
    assert str(tmp_path / "sp/one") in [skipped.path for skipped in findings.skipped]


def test_a_savepoint_is_looked_at_again_before_it_goes(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "jobs").say(JobState.FAILED)
    driver.partial(tmp_path / "sp/one", asked(driver, RequestState.FAILED))
    (garbage,) = find_garbage(Jobs(str(tmp_path / "jobs")), str(tmp_path / "sp"))
    driver.say(JobState.RUNNING)
    with pytest.raises(StillNeededError, match="RUNNING"):
        remove(garbage)
    driver.say(JobState.FAILED)
    (tmp_path / "sp/one/_metadata.json").write_text("{}")
    with pytest.raises(StillNeededError, match="complete"):
        remove(garbage)
    assert (tmp_path / "sp/one/state/count/total/part-0.parquet").exists()
    (tmp_path / "sp/one/_metadata.json").unlink()
    (tmp_path / "sp/one/_writing").unlink()
    with pytest.raises(StillNeededError):
        remove(garbage)
    assert (tmp_path / "sp/one/state/count/total/part-0.parquet").exists()


def test_other_directories_beside_savepoints_are_not_looked_at(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "jobs").say(JobState.FAILED)
    (tmp_path / "sp/mine").mkdir(parents=True)
    (tmp_path / "sp/mine/file").write_text("")
    (tmp_path / "outside").mkdir()
    driver.partial(tmp_path / "outside/one", asked(driver, RequestState.FAILED))
    (tmp_path / "sp/link").symlink_to(tmp_path / "outside/one")
    findings = scan(Jobs(str(tmp_path / "jobs")), str(tmp_path / "sp"))
    assert (findings.garbage, findings.skipped) == ((), ())


def test_a_savepoint_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (skipped,) = scan(Jobs(str(tmp_path / "jobs")), str(tmp_path / "file")).skipped
    assert "not a directory" in skipped.reason
    assert scan(Jobs(str(tmp_path / "jobs")), str(tmp_path / "missing")).skipped == ()


def test_records_of_savepoints_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "jobs").say(JobState.RUNNING)
    driver.savepoint(tmp_path / "sp/there", "there")
    driver.savepoint(tmp_path / "sp/gone", "gone")
    (tmp_path / "sp/gone/_metadata.json").unlink()
    (garbage,) = find_garbage(Jobs(str(tmp_path / "jobs")))
    assert (garbage.kind, garbage.job) == (GarbageKind.RECORD, "wordcount")
    assert Path(garbage.path).stat().st_size == garbage.bytes > 0
    (tmp_path / "sp/gone/_metadata.json").write_text("{}")
    with pytest.raises(StillNeededError):
        remove(garbage)
    (tmp_path / "sp/gone/_metadata.json").unlink()
    remove(garbage)
    remove(garbage)  # somebody else was quicker
    assert [entry.id for entry in driver.catalog.list()] == ["there"]


def test_a_disk_that_is_not_mounted_loses_no_records(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "jobs").say(JobState.FAILED)
    driver.savepoint(tmp_path / "mnt/sp/one", "one")
    (tmp_path / "mnt").rename(tmp_path / "unplugged")
    assert find_garbage(Jobs(str(tmp_path / "jobs"))) == []


def test_the_record_of_a_savepoint_that_a_job_came_from_stays(tmp_path: Path) -> None:
    root = tmp_path / "jobs"
    driver = Driver(root).say(JobState.FAILED)
    saved = driver.savepoint(tmp_path / "sp/one", "one")
    other = Driver(root, "other").attempt(snapshot=saved).say(JobState.FAILED)
    (tmp_path / "sp/one/_metadata.json").unlink()
    assert find_garbage(Jobs(str(root))) == []
    (other.path / "attempts/1.json").write_bytes(b"damaged")
    findings = scan(Jobs(str(root)))
    assert findings.garbage == ()
    assert "attempts/1.json" in findings.skipped[0].reason


# -- runs


def test_launches_that_are_over_go_unless_a_job_has_its_log_there(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "driver.log").write_text("12345")
    log = str(tmp_path / "runs/two/driver.log")
    Driver(tmp_path / "jobs").say(JobState.FAILED, log=log)
    runs = [tmp_path / "runs/one", tmp_path / "runs/two"]
    (garbage,) = find_garbage(Jobs(str(tmp_path / "jobs")), None, runs)
    assert (garbage.kind, garbage.path, garbage.bytes) == ("run directory", str(runs[0]), 5)
    with pytest.raises(ConfigurationError):
        remove(garbage)
    removed: list[Path] = []
    remove(garbage, remove_run=removed.append)
    assert removed == [runs[0]]
