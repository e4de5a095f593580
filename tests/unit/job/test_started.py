"""What is kept of the program that takes a snapshot."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from turnback.errors import ConfigurationError
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.job.run import Launch, StartedProgram

TEXT = 'PASSWORD = "hunter2"\nURL = "postgres://me:hunter2@db"\nprint(token())\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my job.py"
    path.write_text(TEXT)
    return path


def started(script: Path) -> StartedProgram:
    return StartedProgram.of_launch(
        Launch(
            script=str(script),
            arguments=("--in", "/data", "--db-password", "hunter2"),
            directory="/where it was",
            name="b",
            start_from="/old",
            renames={"a": "b"},
            allow_non_restored_state=("gone",),
            settings={
                "state.checkpoints.dir": "/jobs",
                "parallelism.default": "4",
                "spark.my.password": "hunter2",
            },
            detached=True,
        ),
        "/jobs",
    )


def test_the_command_starts_it_again_as_it_was_started(script: Path) -> None:
    made = started(script)
    words = shlex.split(made.restore_command("/sp/one"))
    assert words == [
        *("cd", "/where it was", "&&", "turnback", "run", "-d", "--root", "/jobs", "--name", "b"),
        *("-D", "parallelism.default=4", "-D", "spark.my.password=****", "-s", "/sp/one"),
        *(str(script), "--in", "/data", "--db-password", "****"),
    ]
    # what was about another snapshot is in the whole command only
    assert {"--rename", "a=b", "--allow", "gone", "/old"} < set(made.command)
    assert "hunter2" not in repr(made)


def test_the_script_is_kept_without_its_secrets_and_a_change_is_seen(script: Path) -> None:
    made = started(script)
    masked = 'PASSWORD = "****"\nURL = "postgres://me:****@db"\nprint(token())\n'
    assert made.text == masked
    assert made.has_changed() is False
    script.write_text(f"{TEXT}# new\n")
    assert made.has_changed() is True
    script.unlink()
    assert made.has_changed() is None
    assert made.versions["python"] and made.versions["msgspec"]


def test_a_script_that_cannot_be_kept(tmp_path: Path) -> None:
    gone = StartedProgram.of_launch(Launch(script=str(tmp_path / "gone.py")), "memory://jobs/x")
    assert (gone.digest, gone.text, gone.has_changed(), gone.options) == (None, None, None, ())
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe")
    assert StartedProgram.of_launch(Launch(script=str(binary)), "/r").text is None


def test_a_job_keeps_each_script_once(tmp_path: Path, script: Path) -> None:
    job = JobDirectory.locate(str(tmp_path / "jobs"), "job")
    for attempt in (1, 2):
        job.record_attempt(attempt, started=started(script))
    job.record_attempt(3)
    assert len(job.storage.list("programs")) == 1
    assert job.started(1) == job.started(2) == started(script)
    assert job.started(3) is None
    assert job.started(4) is None
    job.storage.put("attempts/2.json", b"{")
    assert job.started(2) is None


def test_a_label_has_no_spaces(tmp_path: Path) -> None:
    requests = Requests(JobDirectory.locate(str(tmp_path), "job").storage)
    with pytest.raises(ConfigurationError, match="use 'launch-day', and put more text in a note"):
        requests.submit(RequestSpec(RequestKind.SAVEPOINT, label="launch  day"))
    assert requests.ids() == []
