"""Jobs in an object store are seen like those in directories."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.process import free_port
from services.s3 import S3Server, s3_server
from turnback.checkpoint.log import CheckpointLog
from turnback.errors import JobNotFoundError, StorageError
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind
from turnback.job.requests import Requests
from turnback.job.status import JobState, StatusUpdate
from turnback.operations.garbage import remove, scan
from turnback.views.jobs import Jobs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("gateway")) as running:
        running.create_bucket("bucket")
        yield running


@pytest.fixture
def root(server: S3Server) -> str:
    return f"s3://bucket/{uuid.uuid4().hex}/jobs"


def start(root: str, name: str, server: S3Server, state: JobState) -> JobDirectory:
    directory = JobDirectory.locate(root, name, server.options)
    info = directory.open()
    fence = CheckpointLog(directory.storage).fence(
        job=name, job_id=info.job_id, created_ms=0, host="h", pid=1, nonce="n"
    )
    directory.record_attempt(fence.attempt)
    directory.write_status(state, info.job_id, StatusUpdate(attempt=fence.attempt))
    return directory


@pytest.mark.parametrize("spelling", ["", "/"])
def test_jobs_are_listed_found_and_asked(root: str, server: S3Server, spelling: str) -> None:
    jobs = Jobs(root + spelling, server.options)
    assert jobs.list() == []
    for name in ("a/b", "wordcount", "../x"):
        start(root, name, server, JobState.RUNNING)
    assert jobs.names() == ["../x", "a/b", "wordcount"]
    assert {job.state for job in jobs.list()} == {"RUNNING"}
    assert jobs.find("word").name == "wordcount"
    found = jobs.find(f"{root}/wordcount")
    row = found.submit(RequestKind.CANCEL)
    assert [request.id for request in Requests(found.directory.storage).open()] == [row.id]
    assert [job.name for job in jobs.timeline(found).jobs] == ["wordcount"]
    with pytest.raises(JobNotFoundError):
        jobs.find(f"{root}/nothing")


def test_files_that_nothing_needs_are_removed(root: str, server: S3Server) -> None:
    storage = start(root, "wordcount", server, JobState.CANCELED).storage
    storage.put("state/1/orphan", b"12345")
    storage.put("state/2/of the next attempt", b"1")
    (garbage,) = scan(Jobs(root, server.options)).garbage
    assert (garbage.path, garbage.bytes) == (f"{root}/wordcount/state/1", 5)
    remove(garbage, server.options)
    assert storage.list("state") == ["state/2/of the next attempt"]


@pytest.mark.parametrize(("reached", "ran"), [(True, False), (False, True)])
def test_a_start_from_nothing_is_refused_before_the_script_runs(
    root: str, server: S3Server, tmp_path: Path, reached: bool, ran: bool
) -> None:
    """Only what is certain is refused: the program may reach another store of this name."""
    script, done = tmp_path / "job.py", tmp_path / "done"
    script.write_text(f"open({str(done)!r}, 'w').close()")
    endpoint = server.options["endpoint"] if reached else f"http://127.0.0.1:{free_port()}"
    settings = {
        "s3.endpoint": endpoint,
        "s3.access-key": server.options["access_key_id"],
        "s3.secret-key": server.options["secret_access_key"],
        "s3.allow-http": "true",
    }
    given = [word for pair in settings.items() for word in ("-D", "=".join(pair))]
    command = [Path(sys.executable).with_name("turnback"), "--root", str(tmp_path / "jobs")]
    run = subprocess.run(
        [*command, "run", *given, "-s", f"{root}/no-savepoint", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.exists() is ran, run.stderr
    assert ("no savepoint at" in run.stderr) is reached


def test_a_store_that_does_not_answer_is_not_an_empty_one(server: S3Server) -> None:
    with pytest.raises(StorageError):
        Jobs("s3://no-such-bucket/jobs", server.options).list()
