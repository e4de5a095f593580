"""`savepoint`, `stop` and `cancel`, with a driver that answers, and waiting for one."""

import json
import math
import signal
import time

import pytest

from manual_clock import ManualClock
from turnback.cli.context import Cli, ExitCode, RequestFailedError
from turnback.cli.operations import RequestWaiter
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.request import RequestKind, RequestSpec, RequestState
from turnback.job.requests import Requests
from turnback.job.status import JobState
from turnback.views.job import Job
from turnback.views.model import JobSummary, Process, RequestRow
from unit.cli.cli_support import Driver, make_job

pytestmark = pytest.mark.slow

COMPLETED, FAILED = RequestState.COMPLETED, RequestState.FAILED


@pytest.fixture
def job(shell):
    return make_job(shell.root, "orders", JobState.RUNNING)


def served(job, answers, tmp_path):
    return Driver(job, answers, str(tmp_path / "sp" / "one"))


def test_savepoint_prints_where_it_is(shell, job, tmp_path):
    with served(job, [COMPLETED], tmp_path) as driver:
        done = shell("savepoint", "orders", "--label", "v2", "--note", "why", "--format", "native")
    assert (done.code, done.lines) == (0, [f"{tmp_path}/sp/one"])
    (request,) = driver.served
    assert request.kind is RequestKind.SAVEPOINT
    assert (request.label, request.note, request.type.value) == ("v2", "why", "native")
    assert request.target is None


def test_savepoint_takes_a_directory(shell, job, tmp_path):
    with served(job, [COMPLETED, COMPLETED], tmp_path) as driver:
        shell("savepoint", "orders", "s3://bucket/savepoints")
        shell("savepoint", "orders", "here")
    # The driver is on this machine, so a relative directory means the same to it.
    assert [r.target for r in driver.served] == ["s3://bucket/savepoints", f"{shell.home}/here"]


def test_savepoint_prints_the_request_as_json(shell, job, tmp_path):
    with served(job, [COMPLETED], tmp_path):
        done = shell("savepoint", "orders", "--json")
    assert (done.json["state"], done.json["path"]) == ("COMPLETED", f"{tmp_path}/sp/one")
    assert done.err == ""


def test_a_failed_savepoint_says_why(shell, job, tmp_path):
    with served(job, [FAILED], tmp_path):
        done = shell("savepoint", "orders", "--json")
    assert done.code == ExitCode.FAILED
    assert done.error["kind"] == "RequestFailedError"
    assert "the disk is full" in done.error["message"]


def test_no_wait_only_asks(shell, job):
    done = shell("savepoint", "orders", "--no-wait")
    assert done.code == 0
    (request,) = Requests(job.storage).open()
    assert done.lines == [request.id]


def test_a_timeout_leaves_the_request_open(shell, job):
    done = shell("savepoint", "orders", "--timeout", "300 ms")
    assert done.code == ExitCode.TIMED_OUT
    assert "turnback status orders" in done.err
    assert len(Requests(job.storage).open()) == 1


@pytest.mark.parametrize("words", [["--timeout", "soon"], ["--timeout", "-1"]])
def test_a_wrong_timeout_is_refused_before_anything_is_asked(shell, job, words):
    assert shell("savepoint", "orders", *words).code == ExitCode.USAGE
    assert Requests(job.storage).open() == []


@pytest.mark.parametrize("words", [["savepoint"], ["stop", "--yes"], ["cancel", "--yes"]])
def test_yid_as_in_flink_is_checked_before_anything_is_asked(shell, words):
    job = make_job(shell.root, "orders", JobState.RUNNING, application="application_17_0001")
    for wrong in ("application_17_0002", "17"):
        done = shell(*words, "orders", "-yid", wrong)
        assert done.code == ExitCode.NOT_FOUND
        assert wrong in done.err and "application_17_0001" in done.err
    assert Requests(job.storage).open() == []
    for right in (["-yid", "application_17_0001"], ["--yarnapplicationId=application_17_0001"]):
        assert shell(*words, *right, "orders", "--no-wait").code == 0
    assert len(Requests(job.storage).open()) == 2


def test_yid_of_a_job_that_ran_on_no_cluster(shell, job):
    done = shell("stop", "orders", "-yid", "application_17_0001", "--yes")
    assert done.code == ExitCode.NOT_FOUND
    assert "not run on a cluster" in done.err


def test_no_wait_and_timeout_contradict_each_other(shell, job):
    assert shell("savepoint", "orders", "--no-wait", "--timeout", "1 s").code == ExitCode.USAGE
    assert Requests(job.storage).open() == []


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.FAILED, JobState.CANCELED])
def test_a_job_that_is_over_cannot_be_asked(shell, state):
    job = make_job(shell.root, "orders", state)
    done = shell("savepoint", "orders", "--json")
    assert done.code == ExitCode.CONFLICT
    assert done.error["kind"] == "JobNotRunningError"
    assert Requests(job.storage).open() == []


@pytest.mark.parametrize(
    ("words", "target", "savepoint"),
    [
        (["cancel", "orders"], None, False),
        (["cancel", "orders", "-s"], None, True),
        (["cancel", "-s", "orders"], None, True),
        (["cancel", "-s", "/sp", "orders"], "/sp", True),
        (["cancel", "orders", "-s", "/sp"], "/sp", True),
        (["cancel", "--savepoint", "/sp", "orders"], "/sp", True),
        (["cancel", "--savepoint=/sp", "orders"], "/sp", True),
        (["cancel", "-s", "--", "orders"], None, True),
        (["cancel", "-s", "/sp", "--", "orders"], "/sp", True),
        (["cancel", "--timeout", "9 s", "-s", "orders"], None, True),
        (["stop", "orders"], None, False),
        (["stop", "orders", "--savepoint"], None, True),
        (["stop", "--savepoint", "orders", "--no-color"], None, True),
        (["stop", "--savepoint", "/sp", "orders"], "/sp", True),
        (["stop", "orders", "--no-savepoint"], None, False),
    ],
)
def test_the_directory_of_a_savepoint_may_be_left_out(
    shell, job, tmp_path, words, target, savepoint
):
    with served(job, [COMPLETED], tmp_path) as driver:
        done = shell(words[0], "--yes", *words[1:])
    assert done.code == 0, done.err
    (request,) = driver.served
    assert request.kind.value == words[0]
    assert (request.target, request.savepoint) == (target, savepoint)
    assert done.lines == ([f"{tmp_path}/sp/one"] if savepoint else [])


def test_stop_can_drain(shell, job, tmp_path):
    with served(job, [COMPLETED], tmp_path) as driver:
        done = shell("stop", "orders", "--drain", "--yes")
    assert driver.served[0].drain
    assert "'orders' is stopped" in done.err


def test_stop_with_and_without_savepoint_contradict_each_other(shell, job):
    done = shell("stop", "orders", "--savepoint", "--no-savepoint", "--yes")
    assert done.code == ExitCode.USAGE


@pytest.mark.parametrize("verb", ["stop", "cancel"])
def test_nothing_is_asked_without_a_terminal_or_yes(shell, job, verb):
    done = shell(verb, "orders", "--json")
    assert done.code == ExitCode.DECLINED
    assert "--yes" in done.error["message"]
    assert Requests(job.storage).open() == []


def test_ctrl_c_ends_the_waiting_and_not_the_savepoint(shell, job):
    waiting = shell.start("savepoint", "orders")
    requests = Requests(job.storage)
    deadline = time.monotonic() + 30
    while not requests.open() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == ExitCode.INTERRUPTED
    assert out == ""
    assert "continues" in err and "turnback status orders" in err
    assert "Traceback" not in err
    assert len(requests.open()) == 1


def test_status_shows_what_is_being_done(shell, job):
    shell("savepoint", "orders", "--no-wait")
    (request,) = json.loads(shell("status", "orders", "--json").out)["requests"]
    assert request["state"] == "WAITING"
    assert request["id"] in shell("status", "orders").out


@pytest.mark.parametrize("verb", ["savepoint", "stop", "cancel"])
def test_the_beginning_of_a_name_is_not_enough_to_change_a_job(shell, job, verb):
    yes = () if verb == "savepoint" else ("--yes",)
    done = shell(verb, "ord", "--no-wait", *yes)
    assert done.code == ExitCode.NOT_FOUND
    assert "If you mean 'orders', use its full name" in done.err
    assert Requests(job.storage).open() == []
    assert shell("status", "ord").code == 0
    assert shell(verb, job.info.job_id, "--no-wait", *yes).code == 0


def test_a_stop_is_done_when_the_job_has_ended_whether_or_not_the_driver_says_so(
    shell, job, tmp_path, monkeypatch
):
    def submit(self, *args, **more):
        request = Requests(job.storage).submit(RequestSpec(RequestKind.STOP, savepoint=True))
        entry = SavepointEntry(
            id=request.id, path=str(tmp_path / "sp"), created_ms=0, checkpoint=1, epoch=1
        )
        SavepointCatalog(job.storage).add(entry)
        job.directory.write_status(JobState.FINISHED, job.info.job_id)
        return self.request(request.id)

    monkeypatch.setattr(Job, "submit", submit)
    done = shell("stop", "orders", "--yes")
    assert (done.code, done.lines) == (0, [str(tmp_path / "sp")])


# -- waiting


class TimedJob:
    """A job that is in a state, and has answered a request, from given seconds on."""

    name = "orders"

    def __init__(self, states, *, alive=True, answered=math.inf):
        self.clock = ManualClock()
        self._states = states
        self._driver = Process(host="here", pid=1, alive=alive)
        self._answered = answered

    def summary(self):
        state = [name for since, name in self._states if since <= self.clock.monotonic()][-1]
        return JobSummary(
            name=self.name, job_id="id", directory="/jobs", state=state, driver=self._driver
        )

    def request(self, id):
        state = "COMPLETED" if self.clock.monotonic() >= self._answered else "RUNNING"
        return RequestRow(id=id, kind="savepoint", state=state, created_ms=0)

    def wait(self):
        return RequestWaiter(Cli(), self, self.clock).wait(self.request("1"), None).state


def test_a_job_that_looks_lost_may_be_about_to_restart():
    states = [(0, "LOST"), (9, "RESTARTING"), (13, "LOST"), (22, "RUNNING")]
    assert TimedJob(states, alive=False, answered=30).wait() == "COMPLETED"


def test_waiting_ends_when_a_job_stays_lost():
    job = TimedJob([(0, "RUNNING"), (20, "LOST")], alive=False)
    with pytest.raises(RequestFailedError, match=r"is gone \(LOST\).*turnback status orders"):
        job.wait()
    assert 30 <= job.clock.monotonic() < 36


def test_an_answer_of_a_lost_job_counts():
    assert TimedJob([(0, "LOST")], alive=False, answered=9).wait() == "COMPLETED"


@pytest.mark.parametrize("state", ["FAILED", "FINISHED", "CANCELED"])
def test_a_driver_has_some_time_to_answer_after_its_job_has_ended(state):
    assert TimedJob([(0, state)], answered=25).wait() == "COMPLETED"
    job = TimedJob([(0, state)])
    with pytest.raises(RequestFailedError, match=rf"is gone \({state}\)"):
        job.wait()
    assert 30 <= job.clock.monotonic() < 36


def test_waiting_ends_when_the_job_has_ended_and_its_driver_is_dead():
    job = TimedJob([(0, "FAILED")], alive=False)
    with pytest.raises(RequestFailedError, match=r"is gone \(FAILED\)"):
        job.wait()
    assert job.clock.monotonic() < 5
