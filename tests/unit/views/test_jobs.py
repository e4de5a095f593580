"""Finding jobs: by what people call them, and never outside the root."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from fake_job import Driver, elsewhere
from turnback.core.ids import path_segment
from turnback.errors import (
    AmbiguousJobError,
    ConfigurationError,
    JobNotFoundError,
    JobNotRunningError,
    StorageError,
)
from turnback.job.directory import JobInfo
from turnback.job.request import RequestKind
from turnback.job.status import JobState
from turnback.storage.envelope import encode_document
from turnback.views.jobs import Jobs

_NAMES = itertools.count()
ODD = ["a b", "../x", "..", "/etc/passwd", "a/b", "a%2Fb", "~", ".hidden", "ünï", "x" * 200, "q?#"]


@pytest.fixture(params=["local", "file uri", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://jobs-test-{next(_NAMES)}/jobs"
    path = tmp_path / "all jobs"
    return str(path) if request.param == "local" else path.as_uri()


def test_no_jobs_are_no_error(root: str) -> None:
    assert Jobs(root).list() == []
    assert Jobs(root).names() == []
    assert Jobs(root).savepoints() == []


def test_jobs_are_listed_by_name(root: str) -> None:
    for name in ("b", "a", "c"):
        Driver(root, name).say(JobState.RUNNING)
    assert Jobs(root).names() == ["a", "b", "c"]
    assert [(job.name, job.state) for job in Jobs(root).list()] == [
        (name, "RUNNING") for name in "abc"
    ]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_stay_inside_the_root(root: str, name: str, tmp_path: Path) -> None:
    driver = Driver(root, name).say(JobState.RUNNING)
    jobs = Jobs(root)
    assert jobs.names() == [name]
    for found in (jobs.get(name), jobs.find(name)):
        assert found.name == name
        assert found.directory.storage.uri == driver.storage.uri
        assert found.summary().job_id == driver.info.job_id
    asked = jobs.get(name).submit(RequestKind.SAVEPOINT)
    assert [request.id for request in driver.requests.open()] == [asked.id]
    inside = {"all jobs"} if list(tmp_path.iterdir()) else set()
    assert {path.name for path in tmp_path.iterdir()} == inside


@pytest.mark.parametrize("name", [*ODD, "", " ", "\0", "a\nb", "x" * 201, "all jobs/wordcount"])
def test_a_name_that_is_no_job_is_not_found(root: str, name: str, tmp_path: Path) -> None:
    Driver(root)
    Driver(tmp_path, "x").say(JobState.RUNNING)  # what ../x would be
    Driver(tmp_path.parent, "passwd")
    with pytest.raises(JobNotFoundError):
        Jobs(root).get(name)


@pytest.mark.parametrize("name", [None, 7, b"wordcount", ["wordcount"]])
def test_what_is_no_text_is_not_found(root: str, name: object) -> None:
    with pytest.raises(JobNotFoundError):
        Jobs(root).get(name)  # type: ignore[arg-type]
    with pytest.raises(JobNotFoundError):
        Jobs(root).find(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [None, 7, "", "ftp://host/jobs"])
def test_a_root_that_cannot_be_used_is_refused(bad: object) -> None:
    with pytest.raises(ConfigurationError):
        Jobs(bad)  # type: ignore[arg-type]


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="not a directory"):
        Jobs(str(tmp_path / "file"))


def test_a_root_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("unmounted")
    with pytest.raises(StorageError, match="does not exist"):
        Jobs(str(tmp_path / "root")).list()


# -- find


def test_find_by_name_id_and_beginning(root: str) -> None:
    driver = Driver(root, "wordcount")
    Driver(root, "likes")
    jobs = Jobs(root)
    id_ = driver.info.job_id
    for text in ("wordcount", "word", "w", id_, id_[:8]):
        assert jobs.find(text).name == "wordcount"


def test_an_exact_name_wins_over_longer_ones_and_ids(root: str) -> None:
    other = Driver(root, "other")
    Driver(root, "word")
    Driver(root, "wordcount")
    Driver(root, other.info.job_id)
    jobs = Jobs(root)
    assert jobs.find("word").name == "word"
    assert jobs.find(other.info.job_id).name == other.info.job_id


def test_the_beginning_of_a_name_wins_over_that_of_an_id(root: str) -> None:
    other = Driver(root, "other")
    beginning = other.info.job_id[:5]
    named = Driver(root, f"{beginning}-job")
    assert Jobs(root).find(beginning).name == named.info.job


def test_short_beginnings_of_ids_are_not_enough(root: str) -> None:
    driver = Driver(root, "~")
    assert Jobs(root).find(driver.info.job_id[:4]).name == "~"
    with pytest.raises(JobNotFoundError):
        Jobs(root).find(driver.info.job_id[:3])


def test_a_beginning_of_several_is_ambiguous(root: str) -> None:
    for name in ("word-a", "word-b", "likes"):
        Driver(root, name)
    with pytest.raises(AmbiguousJobError, match=r"'word-a', 'word-b'.*a longer name"):
        Jobs(root).find("word")
    with pytest.raises(JobNotFoundError):
        Jobs(root).get("word-")


def test_what_changes_a_job_needs_its_whole_name_or_id(root: str) -> None:
    driver = Driver(root, "diskfull")
    Driver(root, "likes")
    jobs = Jobs(root)
    id_ = driver.info.job_id
    for text in ("diskfull", id_, f"{root}/diskfull"):
        assert jobs.find(text, whole=True).name == "diskfull"
    for text in ("d", "diskful", id_[:8], id_[:-1]):
        with pytest.raises(JobNotFoundError, match="If you mean 'diskfull', use its full name"):
            jobs.find(text, whole=True)
    Driver(root, "disk")
    with pytest.raises(AmbiguousJobError, match="use the full name"):
        jobs.find("dis", whole=True)
    assert jobs.find("disk", whole=True).name == "disk"


def test_a_typo_suggests_the_nearest_name(root: str) -> None:
    Driver(root, "WordCount")
    Driver(root, "likes")
    with pytest.raises(JobNotFoundError, match="did you mean 'WordCount'"):
        Jobs(root).find("wrodcount")
    with pytest.raises(JobNotFoundError, match="did you mean 'likes'"):
        Jobs(root).get("like")
    with pytest.raises(JobNotFoundError, match="available jobs: 'WordCount', 'likes'"):
        Jobs(root).find("zzz")


def test_where_there_are_no_jobs_it_says_how_to_look_elsewhere(root: str) -> None:
    jobs = Jobs(root)
    with pytest.raises(JobNotFoundError, match=r"--root.*state\.checkpoints\.dir.*TURNBACK_ROOT"):
        jobs.find("wordcount")
    with pytest.raises(JobNotFoundError) as failure:
        jobs.find("wordcount")
    assert jobs.root in str(failure.value)


def test_find_by_directory(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(root, "a b").say(JobState.RUNNING)
    jobs = Jobs("memory://nothing-is-here")
    assert jobs.find(driver.storage.uri).summary().job_id == driver.info.job_id
    assert jobs.find(f"{driver.storage.uri}/").name == "a b"
    assert jobs.find(f"{driver.storage.uri}/job.json").name == "a b"
    if not root.startswith("memory"):
        assert jobs.find(str(driver.path)).name == "a b"
        monkeypatch.chdir(driver.path)
        monkeypatch.chdir("..")
        assert jobs.find(f"./{driver.path.name}").summary().state == "RUNNING"


def test_a_directory_that_is_no_job_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for text in (tmp_path, tmp_path / "no", tmp_path / "file", "ftp://host/a"):
        with pytest.raises(JobNotFoundError, match="neither the name nor the directory"):
            Jobs(str(tmp_path)).find(str(text))


# -- what cannot be read


@pytest.mark.parametrize("file", ["job.json", "status.json"])
@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 99}', b"\xff" * 100])
def test_a_damaged_job_hides_no_other(tmp_path: Path, file: str, damage: bytes) -> None:
    for name in ("a", "b", "c"):
        Driver(tmp_path, name).say(JobState.RUNNING)
    (tmp_path / "b" / file).write_bytes(damage)
    jobs = Jobs(str(tmp_path))
    a, b, c = jobs.list()
    assert (a.state, b.name, b.state, c.state) == ("RUNNING", "b", "UNREADABLE", "RUNNING")
    assert b.problem is not None
    assert f"b/{file}" in b.problem
    assert jobs.find("b").summary() == jobs.find(str(tmp_path / "b")).summary() == b
    assert jobs.find("b").detail().summary == b
    assert jobs.find("c").summary().state == "RUNNING"
    with pytest.raises(JobNotRunningError, match=file):
        jobs.get("b").submit(RequestKind.STOP)
    assert jobs.savepoints() == []
    assert len(jobs.timeline(jobs.get("a")).jobs) == 1


def test_a_copied_directory_is_not_taken_for_the_job_it_names(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "a").say(JobState.RUNNING)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.copytree(tmp_path / "a", tmp_path / "odd name%")
    jobs = Jobs(str(tmp_path))
    assert [(job.name, job.state) for job in jobs.list()] == [
        ("a", "RUNNING"),
        ("b", "UNREADABLE"),
        ("odd name%", "UNREADABLE"),
    ]
    assert "belongs to job 'a'" in str(jobs.get("b").summary().problem)
    assert jobs.find(driver.info.job_id).name == "a"
    with pytest.raises(JobNotRunningError, match="copied or renamed"):
        jobs.get("b").submit(RequestKind.CANCEL)
    assert not (tmp_path / "b/ops").exists()
    elsewhere_too = jobs.find(str(tmp_path / "b")).summary()
    assert elsewhere_too.state == "UNREADABLE"


@pytest.mark.parametrize("name", ["../outside", "/etc", "%2e%2e%2foutside", "a\0b", "", "x" * 300])
def test_a_job_json_that_names_another_place_leads_nowhere(tmp_path: Path, name: str) -> None:
    Driver(tmp_path, "outside").say(JobState.RUNNING)
    evil = tmp_path / "root" / "evil"
    evil.mkdir(parents=True)
    (evil / "job.json").write_bytes(encode_document("job", 1, JobInfo(name, "id", 0)))
    (summary,) = Jobs(str(tmp_path / "root")).list()
    assert (summary.name, summary.state) == ("evil", "UNREADABLE")
    assert Jobs(str(tmp_path / "root")).names() == ["evil"]
    assert Jobs(str(tmp_path)).find(str(evil)).summary() == summary
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(JobNotRunningError):
        Jobs(str(tmp_path / "root")).get("evil").submit(RequestKind.STOP)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_job_json_with_a_name_that_no_job_can_have(tmp_path: Path) -> None:
    evil = tmp_path / path_segment("a\0b")
    evil.mkdir()
    (evil / "job.json").write_bytes(encode_document("job", 1, JobInfo("a\0b", "id", 0)))
    (summary,) = Jobs(str(tmp_path)).list()
    assert (summary.name, summary.state) == ("a%00b", "UNREADABLE")
    assert Jobs(str(tmp_path)).find(str(evil)).summary() == summary


def test_links_in_the_root_are_not_followed(tmp_path: Path) -> None:
    Driver(tmp_path / "outside", "secret").say(JobState.RUNNING)
    root = tmp_path / "root"
    Driver(root, "real").say(JobState.RUNNING)
    (root / "secret").symlink_to(tmp_path / "outside/secret")
    (root / "also").symlink_to("../outside/secret")
    jobs = Jobs(str(root))
    assert jobs.names() == ["real"]
    for name in ("secret", "also"):
        with pytest.raises(JobNotFoundError):
            jobs.get(name)
        with pytest.raises(JobNotFoundError):
            jobs.find(name)


@pytest.mark.parametrize("file", ["job.json", "status.json"])
def test_links_in_a_job_directory_are_not_followed(tmp_path: Path, file: str) -> None:
    Driver(tmp_path / "outside", "real").say(JobState.RUNNING, cause="secret")
    driver = Driver(tmp_path / "root", "real").say(JobState.RUNNING)
    (driver.path / file).unlink()
    (driver.path / file).symlink_to(tmp_path / "outside/real" / file)
    (summary,) = Jobs(str(tmp_path / "root")).list()
    assert (summary.state, summary.cause) == ("UNREADABLE", None)
    assert "link" in str(summary.problem)


def test_other_things_in_the_root_are_no_jobs(tmp_path: Path) -> None:
    Driver(tmp_path, "real")
    (tmp_path / "runs/1").mkdir(parents=True)
    (tmp_path / "savepoint-real-1/state").mkdir(parents=True)
    (tmp_path / "file.json").write_text("")
    assert Jobs(str(tmp_path)).names() == ["real"]


def test_a_directory_with_checkpoints_but_no_identity_is_shown(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "lost identity").attempt()
    (driver.path / "job.json").unlink()
    (summary,) = Jobs(str(tmp_path)).list()
    assert (summary.name, summary.state) == ("lost identity", "UNREADABLE")
    assert "has no job.json" in str(summary.problem)


def test_a_directory_name_that_no_job_can_have(tmp_path: Path) -> None:
    Driver(tmp_path, "good")
    for name in ("a\nb", path_segment("y" * 250), "%ff"):
        shutil.copytree(tmp_path / "good", tmp_path / name)
    jobs = Jobs(str(tmp_path)).list()
    assert sorted(job.state for job in jobs) == ["CREATED", *["UNREADABLE"] * 3]
    assert all("\n" not in job.name for job in jobs)


def test_a_job_elsewhere_is_listed_without_waiting(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=elsewhere()).say(JobState.RUNNING)
    (summary,) = Jobs(str(tmp_path), clock=driver.clock).list()
    assert (summary.state, summary.driver and summary.driver.alive) == ("RUNNING", None)
    assert driver.clock.monotonic() == 0
