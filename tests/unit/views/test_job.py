"""What is to be seen of one job."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_job import START, Driver, dead, elsewhere, living, seen
from turnback.errors import CorruptFileError
from turnback.job.liveness import Process
from turnback.job.request import RequestKind, RequestOutcome, RequestSpec, RequestState
from turnback.job.run import RunDirectory
from turnback.job.status import JobState, Lag, Metrics

# -- liveness


@pytest.mark.parametrize("state", list(JobState))
def test_a_live_driver_is_believed(driver: Driver, state: JobState) -> None:
    summary = seen(driver.say(state)).summary()
    assert summary.state == state.value
    assert summary.driver is not None
    assert summary.driver.alive


@pytest.mark.parametrize("state", [s for s in JobState if s.is_terminal])
def test_the_last_word_of_a_job_that_ended_counts(tmp_path: Path, state: JobState) -> None:
    summary = seen(Driver(tmp_path, process=dead()).say(state)).summary()
    assert summary.state == state.value
    assert summary.driver is not None
    assert summary.driver.alive is False


@pytest.mark.parametrize("state", [s for s in JobState if not s.is_terminal])
def test_a_job_whose_driver_died_is_lost(tmp_path: Path, state: JobState) -> None:
    assert seen(Driver(tmp_path, process=dead()).say(state)).summary().state == "LOST"


def test_a_dead_driver_with_a_live_supervisor_is_restarting(tmp_path: Path) -> None:
    with living() as supervisor:
        driver = Driver(tmp_path, process=dead()).say(JobState.RUNNING, supervisor=supervisor)
        summary = seen(driver).summary()
        assert summary.state == "RESTARTING"
        assert summary.supervisor == Process(host=supervisor.host, pid=supervisor.pid, alive=True)
    assert seen(driver).summary().state == "LOST"
    driver.say(JobState.RUNNING, supervisor=elsewhere())
    assert seen(driver).summary().state == "LOST"


def test_a_supervisor_that_the_status_does_not_name_yet_counts(tmp_path: Path) -> None:
    """The driver started a new supervisor and was killed before its next heartbeat."""
    run = RunDirectory(tmp_path / "run")
    driver = Driver(tmp_path, process=dead())
    driver.say(JobState.RUNNING, supervisor=dead(), log=str(run.log))
    assert seen(driver).summary().state == "LOST"  # there is no run directory
    with living() as supervisor:
        run.set_supervisor(supervisor)
        summary = seen(driver).summary()
        assert summary.state == "RESTARTING"
        assert summary.supervisor == Process(host=supervisor.host, pid=supervisor.pid, alive=True)
    assert seen(driver).summary().state == "LOST"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}'])
def test_a_damaged_run_directory_tells_nothing(tmp_path: Path, content: bytes) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (run.path / "supervisor.json").write_bytes(content)
    driver = Driver(tmp_path, process=dead()).say(JobState.RUNNING, log=str(run.log))
    assert seen(driver).summary().state == "LOST"
    driver.say(JobState.RUNNING, log=str(run.path / "supervisor.json" / "driver.log"))
    assert seen(driver).summary().state == "LOST"


def test_of_a_driver_elsewhere_only_its_silence_can_be_told(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=elsewhere()).say(JobState.RUNNING)
    driver.clock.advance(60_000)
    assert seen(driver).summary().problem is None
    driver.clock.advance(130_000)
    summary = seen(driver).summary()
    assert (summary.state, summary.driver and summary.driver.alive) == ("RUNNING", None)
    assert summary.problem == "its driver has not reported for 3 min"
    driver.clock.advance(3 * 24 * 3_600_000)
    assert seen(driver).summary().problem == "its driver has not reported for 3 d"
    driver.clock.set_now_ms(0)  # a clock that is behind says nothing
    assert seen(driver).summary().problem is None


def test_the_process_number_of_a_dead_driver_given_to_another_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    with living() as other:
        import msgspec

        gone = msgspec.structs.replace(other, started="1")
        driver = Driver(tmp_path, process=gone).say(JobState.RUNNING)
        assert seen(driver).summary().state == "LOST"


def test_a_job_without_status_is_created(driver: Driver) -> None:
    summary = seen(driver).summary()
    assert (summary.state, summary.driver, summary.created_ms) == ("CREATED", None, START)


# -- summary and detail


def test_the_summary_says_what_the_driver_said(driver: Driver) -> None:
    driver.attempt().say(
        JobState.RUNNING,
        epoch=7,
        checkpoint=3,
        restarts=2,
        cause="why",
        log="/log",
        metrics=Metrics(started_ms=5, read=100, per_s=2.5),
    )
    summary = seen(driver).summary()
    assert (summary.attempt, summary.epoch, summary.checkpoint) == (1, 7, 3)
    assert (summary.restarts, summary.cause, summary.log) == (2, None, "/log")
    assert (summary.started_ms, summary.records_in, summary.records_per_s) == (5, 100, 2.5)
    assert summary.directory == str(driver.path)


def test_when_an_attempt_began_is_known_without_metrics(driver: Driver) -> None:
    driver.clock.advance(10)
    driver.attempt()
    assert seen(driver).summary().started_ms == START + 10
    (driver.path / "attempts/1.json").write_bytes(b"damaged")
    assert seen(driver).summary().started_ms is None
    assert seen(driver).summary().state == "RUNNING"


def test_a_job_that_does_not_run_reads_nothing_per_second(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=dead()).say(JobState.RUNNING, metrics=Metrics(per_s=9.0))
    assert seen(driver).summary().records_per_s is None


def test_the_detail_is_the_graph_with_its_numbers(driver: Driver) -> None:
    driver.attempt().runs(script=("wc.py", "--fast")).checkpoint()
    metrics = Metrics(
        records={"count": (10, 3)},
        left_out={"count": 2},
        malformed={"events": 4},
        state_bytes={"count": 55},
        watermarks={"count": 9},
    )
    driver.say(JobState.RUNNING, metrics=metrics)
    ended = driver.requests.submit(RequestSpec(RequestKind.SAVEPOINT))
    driver.requests.finish(ended.id, RequestOutcome(RequestState.COMPLETED, path="file:///a"))
    waiting = driver.requests.submit(RequestSpec(RequestKind.SAVEPOINT))
    detail = seen(driver).detail()
    source, count = detail.operators
    assert (source.uid, source.parallelism, source.level, source.inputs) == ("events", None, -1, ())
    assert (count.key, count.inputs, count.states) == ("word", ("events",), ("total",))
    assert (count.records_in, count.records_out) == (10, 3)
    assert (count.state_bytes, count.watermark_ms, count.left_out) == (55, 9, 2)
    assert (source.records_in, source.state_bytes, source.watermark_ms) == (0, None, None)
    assert (source.malformed, count.malformed) == (4, 0)
    assert (detail.script, detail.warnings) == (("wc.py", "--fast"), ("careful",))
    assert (detail.versions, detail.max_parallelism) == ({"turnback": "1"}, 128)
    assert [row.id for row in detail.requests] == [waiting.id]


def test_the_lag_of_a_job_is_that_of_all_its_sources(driver: Driver) -> None:
    def lag(records: int | None, seconds: float | None, catch_up_s: float | None) -> Lag:
        return Lag(records=records, seconds=seconds, catch_up_s=catch_up_s, measured_ms=5)

    driver.attempt().runs()
    one, two = lag(10, 7.0, 3.0), lag(5, 0.5, 8.0)
    driver.say(JobState.RUNNING, metrics=Metrics(lag={"events": one, "others": two}))
    assert seen(driver).summary().lag == lag(15, 7.0, 8.0)
    assert [node.lag for node in seen(driver).detail().operators] == [one, None]
    driver.say(JobState.RUNNING, metrics=Metrics(lag={"a": one, "b": lag(None, None, None)}))
    assert seen(driver).summary().lag == lag(None, None, None)
    driver.say(JobState.RUNNING, metrics=Metrics())
    assert seen(driver).summary().lag is None


@pytest.mark.parametrize("state", [s for s in JobState if s is not JobState.RUNNING])
def test_a_job_that_does_not_run_has_no_lag(driver: Driver, state: JobState) -> None:
    lag = Lag(records=10, seconds=1.0, measured_ms=5)
    driver.attempt().runs().say(state, metrics=Metrics(lag={"events": lag}))
    assert seen(driver).summary().lag is None
    assert [node.lag for node in seen(driver).detail().operators] == [None, None]


def test_a_driver_that_does_not_report_has_no_lag(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=elsewhere()).attempt().runs()
    lag = Lag(records=10, seconds=1.0, measured_ms=5)
    driver.say(JobState.RUNNING, metrics=Metrics(lag={"events": lag}))
    assert seen(driver).summary().lag == lag
    driver.clock.advance(130_000)
    assert seen(driver).summary().lag is None


def test_a_job_that_never_got_as_far_as_a_program_has_no_graph(driver: Driver) -> None:
    assert seen(driver.say(JobState.FAILED)).detail().operators == ()


def test_a_damaged_program_hides_only_the_graph(driver: Driver) -> None:
    driver.runs().say(JobState.RUNNING)
    (driver.path / "program.json").write_bytes(b"damaged")
    detail = seen(driver).detail()
    assert detail.summary.state == "RUNNING"
    assert "program.json" in detail.warnings[0]
    with pytest.raises(CorruptFileError, match=r"program\.json"):
        seen(driver).configuration()
    assert seen(driver).submit(RequestKind.STOP).savepoint is False


def test_the_configuration_is_sorted_by_key(driver: Driver) -> None:
    assert seen(driver).configuration() == []
    driver.runs(("b", "2", "code"), ("a", "1", "-D"))
    rows = seen(driver).configuration()
    assert [(row.key, row.value, row.origin) for row in rows] == [
        ("a", "1", "-D"),
        ("b", "2", "code"),
    ]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("http://127.0.0.1:4040", True),
        ("https://spark.example.org/proxy/app-1?x=1", True),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("http://", False),
        ("http://user:secret@host:4040", False),
        ("http://a b", False),
        (None, False),
    ],
)
def test_the_address_of_sparks_pages_is_one_for_browsers(
    driver: Driver, written: str | None, shown: bool
) -> None:
    driver.say(JobState.RUNNING, spark_ui=written)
    assert seen(driver).summary().spark_ui == (written if shown else None)
    driver.say(JobState.FINISHED)
    assert seen(driver).summary().spark_ui is None  # nobody serves it any more
