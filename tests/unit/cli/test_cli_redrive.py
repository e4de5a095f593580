"""`redrive`, as a person calls it; that letters are fed is shown in tests/engine."""

import json
from base64 import b64encode

import pytest

from turnback.checkpoint.manifest import RedriveProgress
from turnback.cli.context import ExitCode
from turnback.job.redrive import RedriveInbox, RedriveOutcome
from turnback.job.status import JobState
from unit.cli.cli_support import make_job
from unit.letter_support import letter


@pytest.fixture
def job(shell):
    return make_job(shell.root, "orders")


@pytest.fixture
def letters(shell, job):
    """Two of operator `parsed` and one of `other`, where a sink has put them."""
    id = job.info.job_id
    given = [letter(1, job_id=id), letter(2, job_id=id), letter(1, job_id=id, operator="other")]
    path = shell.home / "letters.json"
    path.write_text("".join(json.dumps({"data": b64encode(d).decode()}) + "\n" for d in given))
    return path


def test_a_job_that_does_not_run_is_given_them(shell, job, letters):
    done = shell("redrive", "orders", str(letters))
    assert done.code == 0
    assert done.lines[0] == "3 dead letters: 3 submitted, 0 already submitted"
    assert "once it runs" in done.err
    again = shell("redrive", "orders", str(letters), "--json").json
    assert (again["given"], again["before"], again["done"]) == (0, 3, True)


def test_only_those_of_an_operator_and_first_only_counted(shell, job, letters):
    words = ("redrive", "orders", str(letters), "--operator", "parsed")
    (first,) = shell(*words, "--dry-run").lines
    assert first == "2 dead letters: 2 would be submitted, 0 already submitted"
    assert shell(*words, "--json").json["given"] == 2
    (then,) = shell(*words, "--dry-run").lines
    assert then == "2 dead letters: 0 would be submitted, 2 already submitted"


def test_what_became_of_them_is_told(shell, job, letters):
    inbox = RedriveInbox(job.storage, job.info.job_id)
    shell("redrive", "orders", str(letters))
    inbox.write_outcome(1, RedriveOutcome(1, 1, {"the program has no operator 'other'": (2,)}))
    job.checkpoint(redriven=RedriveProgress(2))
    # Refused ones may be given again: here nobody runs the job, and the next batch is confirmed.
    inbox.write_outcome(2, RedriveOutcome(0, 0, {"the program has no operator 'other'": (0,)}))
    done = shell("redrive", "orders", str(letters))
    assert done.code == ExitCode.FAILED
    assert done.lines == [
        "3 dead letters: 1 submitted, 2 already submitted",
        "0 redriven by job 'orders'",
        "1 not redriven: the program has no operator 'other'",
    ]


def test_it_waits_no_longer_than_it_was_told(shell, job, letters):
    job.directory.write_status(JobState.RUNNING, job.info.job_id)
    done = shell("redrive", "orders", str(letters), "--timeout", "100 ms")
    assert done.code == ExitCode.TIMED_OUT
    assert "has not confirmed the dead letters after 100 ms" in done.err
    assert shell("redrive", "orders", str(letters), "--no-wait").code == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nobody", "letters.json"], ExitCode.NOT_FOUND, "nobody"),
        (["orders", "missing.json"], ExitCode.NOT_FOUND, "missing.json does not exist"),
        (["orders"], ExitCode.USAGE, "LETTERS"),
        (
            ["orders", "letters.json", "--operator", "x"],
            ExitCode.USAGE,
            "letters: 'other', 'par",
        ),
        (
            ["orders", "foreign.json"],
            ExitCode.USAGE,
            "1 of 1 dead letters do not belong to the current job 'orders'",
        ),
        (["orders", "letters.json", "--timeout", "soon"], ExitCode.USAGE, "--timeout"),
        (
            ["orders", "letters.json", "--no-wait", "--timeout", "1 s"],
            ExitCode.USAGE,
            "cannot be used together",
        ),
    ],
)
def test_what_cannot_be_done(shell, letters, words, code, says):
    foreign = json.dumps({"data": b64encode(letter(1)).decode()})
    (shell.home / "foreign.json").write_text(foreign)
    done = shell("redrive", *words)
    assert done.code == code, done.err
    assert says in done.err
