"""`turnback get`: one key of a job's state."""

import pytest

from fake_job import schema
from turnback.cli.context import ExitCode
from turnback.values.typeinfo import Types
from unit.cli.cli_support import make_job

SEEN = schema("seen", "list", Types.STRING(), [Types.STRING(), Types.LONG()])


@pytest.fixture
def job(shell):
    job = make_job(shell.root, "orders")
    job.checkpoint((SEEN, {("de", 1): ["x", "y", "z"]}))
    return job


def test_get_prints_the_value_alone(shell, job):
    assert shell("get", "orders", "count", "total", "alice").lines == ["3"]
    assert shell("get", "ord", "count", "total", "bob").out == "2\n"
    seen = shell("get", "orders", "count", "total", "alice", "--json").json
    assert (seen["found"], seen["rows"], seen["snapshot"], seen["epoch"]) == (
        True,
        [[3]],
        "chk-4",
        3,
    )


def test_get_prints_a_page_of_a_list(shell, job):
    done = shell("get", "orders", "count", "seen", '["de", 1]', "--rows", "2")
    assert done.lines == ["POSITION  VALUE", "0         x", "1         y"]
    after = done.err.split()[-1]
    done = shell("get", "orders", "count", "seen", "de,1", "--after", after)
    assert (done.lines[1:], done.err) == (["2         z"], "")


def test_get_of_a_key_that_is_not_there_ends_with_a_code(shell, job):
    done = shell("get", "orders", "count", "total", "nobody")
    assert (done.code, done.out) == (ExitCode.NOT_FOUND, "")
    assert "state 'total' of operator 'count' has no value for 'nobody' in chk-4" in done.err
    done = shell("get", "orders", "count", "total", "nobody", "--json")
    assert (done.code, done.json["found"], done.json["rows"]) == (ExitCode.NOT_FOUND, False, [])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["oders", "count", "total", "a"], ExitCode.NOT_FOUND, "did you mean 'orders'?"),
        (["orders", "cont", "total", "a"], ExitCode.NOT_FOUND, "did you mean 'count'?"),
        (["orders", "count", "totals", "a"], ExitCode.NOT_FOUND, "did you mean 'total'?"),
        (["orders", "count", "seen", "a"], ExitCode.USAGE, "not a key of 2 columns"),
        (["orders", "count", "seen", "a,b"], ExitCode.USAGE, "not a key of type bigint"),
        (["orders", "count", "seen", "a,1", "--after", "x"], ExitCode.USAGE, "invalid cursor"),
        (["orders", "count", "total"], ExitCode.USAGE, "KEY"),
        (["orders", "count", "total", "a", "--rows", "0"], ExitCode.USAGE, "--rows"),
    ],
)
def test_what_get_cannot_find_or_use(shell, job, words, code, message):
    done = shell("get", *words)
    assert done.code == code
    assert message in done.err


def test_get_of_a_damaged_state(shell, job):
    path = job.files[0].path
    job.storage.put(path, job.storage.get(path)[:-1])
    done = shell("get", "orders", "count", "total", "alice")
    assert done.code == ExitCode.DAMAGED
    assert path in done.err
