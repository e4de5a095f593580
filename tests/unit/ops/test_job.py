"""What is to be seen of one job, and what can be asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver_support import START, Driver, dead, done, elsewhere, failed, living

from turnback.coordinator.event import AttemptStarted, JobEnded, Restarting
from turnback.coordinator.request import Progress, RequestKind, RequestState
from turnback.coordinator.savepoint_settings import SavepointFormat
from turnback.coordinator.status import JobState, Metrics, UnderWay
from turnback.core.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    JobNotRunningError,
    NotFoundError,
)
from turnback.ops.checkpoints import distribution
from turnback.ops.job import Job
from turnback.ops.jobs import Jobs
from turnback.ops.model import CheckpointStatus, Process


def seen(driver: Driver) -> Job:
    return Job(driver.directory, clock=driver.clock)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


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


def test_of_a_driver_elsewhere_only_its_silence_can_be_told(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=elsewhere()).say(JobState.RUNNING)
    driver.clock.advance(60_000)
    assert seen(driver).summary().problem is None
    driver.clock.advance(130_000)
    summary = seen(driver).summary()
    assert (summary.state, summary.driver and summary.driver.alive) == ("RUNNING", None)
    assert summary.problem == "no word from its driver for 3 min"
    driver.clock.advance(3 * 24 * 3_600_000)
    assert seen(driver).summary().problem == "no word from its driver for 3 days"
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
    assert (summary.restarts, summary.cause, summary.log) == (2, "why", "/log")
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
        records={"count": (10, 3)}, state_bytes={"count": 55}, watermarks={"count": 9}
    )
    driver.say(JobState.RUNNING, metrics=metrics)
    ended = driver.requests.submit(RequestKind.SAVEPOINT)
    driver.requests.finish(ended.id, RequestState.COMPLETED, path="file:///a")
    waiting = driver.requests.submit(RequestKind.SAVEPOINT)
    detail = seen(driver).detail()
    source, count = detail.operators
    assert (source.uid, source.parallelism, source.level, source.inputs) == ("events", None, -1, ())
    assert (count.key, count.inputs, count.states) == ("word", ("events",), ("total",))
    assert (count.records_in, count.records_out) == (10, 3)
    assert (count.state_bytes, count.watermark_ms) == (55, 9)
    assert (source.records_in, source.state_bytes, source.watermark_ms) == (0, None, None)
    assert (detail.script, detail.warnings) == (("wc.py", "--fast"), ("careful",))
    assert (detail.versions, detail.max_parallelism) == ({"turnback": "1"}, 128)
    assert [row.id for row in detail.requests] == [waiting.id]


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
    assert seen(driver).ask(RequestKind.STOP).savepoint is False


def test_the_configuration_is_sorted_by_key(driver: Driver) -> None:
    assert seen(driver).configuration() == []
    driver.runs(("b", "2", "code"), ("a", "1", "-D"))
    rows = seen(driver).configuration()
    assert [(row.key, row.value, row.origin) for row in rows] == [
        ("a", "1", "-D"),
        ("b", "2", "code"),
    ]


# -- checkpoints


def test_checkpoints_are_told_from_history_newest_first(driver: Driver) -> None:
    driver.attempt()
    first = driver.checkpoint(epoch=3)
    driver.happens(failed(5, after_ms=400))
    second = driver.checkpoint(epoch=6, waited_ms=100, sync_ms=15)
    driver.log.remove(first)
    history = seen(driver).checkpoints()
    newest, broken, oldest = history.rows
    assert (newest.number, newest.status, newest.epoch) == (second, "COMPLETED", 6)
    assert (newest.duration_ms, newest.sync_ms, newest.async_ms) == (165, 15, 50)
    assert newest.triggered_ms == driver.clock.now_ms() - 150
    assert (newest.delta_bytes, newest.full_bytes, newest.files) == (100, 1_000, 3)
    assert (newest.acknowledged, newest.tasks) == (4, 4)
    assert newest.path == f"{driver.path}/checkpoints/chk-{second}.json"
    assert Path(newest.path).is_file()
    assert (oldest.number, oldest.path) == (first, None)
    assert (broken.status, broken.number, broken.reason) == ("FAILED", None, "no space")
    assert (broken.duration_ms, broken.sync_ms, broken.path) == (400, None, None)
    assert (history.completed, history.failed, history.in_progress) == (2, 1, 0)
    assert history.duration_ms is not None
    assert (history.duration_ms.min, history.duration_ms.max) == (65, 165)
    assert history.duration_ms.mean == history.duration_ms.p50 == 115


def test_a_checkpoint_that_the_history_does_not_know_yet_is_seen_as_well(driver: Driver) -> None:
    driver.attempt()
    first = driver.checkpoint(epoch=3)
    second = driver.checkpoint(epoch=4, recorded=False)
    third = driver.checkpoint(epoch=5, recorded=False)
    Path(f"{driver.path}/checkpoints/chk-{third}.json").write_bytes(b"damaged")
    driver.log.remove(first)
    history = seen(driver).checkpoints()
    assert [row.number for row in history.rows] == [second, first]
    assert (history.rows[0].epoch, history.rows[0].duration_ms) == (4, None)
    assert history.rows[0].path == f"{driver.path}/checkpoints/chk-{second}.json"
    assert history.completed == 2
    assert [manifest.number for manifest in seen(driver).retained()] == [second]


def test_order_follows_the_numbers_not_the_clock(driver: Driver) -> None:
    driver.attempt()
    driver.checkpoint(epoch=1)
    driver.clock.set_now_ms(START - 10_000_000)
    driver.checkpoint(epoch=2)
    driver.attempt(checkpoint=3)
    driver.checkpoint(epoch=3)
    rows = seen(driver).checkpoints().rows
    assert [(row.attempt, row.epoch) for row in rows] == [(2, 3), (1, 2), (1, 1)]


def test_restores_are_counted(driver: Driver) -> None:
    driver.attempt().attempt(checkpoint=1).attempt(snapshot="file:///sp")
    assert seen(driver).checkpoints().restored == 2


def test_what_is_under_way_is_shown_while_a_driver_may_live(tmp_path: Path) -> None:
    under_way = (UnderWay(7, "periodic", START), UnderWay(8, "savepoint", START + 5))
    metrics = Metrics(under_way=under_way)
    for name, process, shown in (("a", None, 2), ("b", elsewhere(), 2), ("c", dead(), 0)):
        driver = Driver(tmp_path, name, process=process).attempt()
        driver.say(JobState.RUNNING, metrics=metrics)
        history = seen(driver).checkpoints()
        assert history.in_progress == len(history.rows) == shown
        if shown:
            assert history.rows[0].status is CheckpointStatus.IN_PROGRESS
            assert (history.rows[0].epoch, history.rows[0].triggered_ms) == (8, START + 5)
            assert history.rows[0].attempt == 1
        driver.say(JobState.CANCELED, metrics=metrics)
        assert seen(driver).checkpoints().rows == ()


def test_a_history_that_cannot_be_read_leaves_the_rest(driver: Driver) -> None:
    driver.attempt()
    driver.checkpoint()
    driver.attempt()
    driver.checkpoint()
    (driver.path / "history/1-0.json").write_bytes(b"{")
    assert [row.attempt for row in seen(driver).checkpoints().rows] == [2]


def test_percentiles_are_interpolated() -> None:
    found = distribution([4, 1, None, 3, 2])
    assert found is not None
    assert (found.min, found.p50, found.max, found.mean) == (1, 2.5, 4, 2.5)
    assert found.p90 == pytest.approx(3.7)
    assert found.p99 == pytest.approx(3.97)
    assert distribution([]) is None
    assert distribution([None]) is None
    one = distribution([7])
    assert one is not None
    assert one.p50 == one.p99 == one.mean == 7


# -- failures


def test_failures_are_restarts_ends_and_deaths(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.attempt().happens(Restarting("out of luck", 500))
    at = driver.clock.now_ms()
    driver.attempt().happens(done(9))
    died = driver.clock.now_ms()
    driver.attempt().happens(JobEnded("FAILED", "for good")).say(JobState.FAILED)
    end, death, restart = seen(driver).failures()
    assert (restart.attempt, restart.kind, restart.cause) == (1, "restarting", "out of luck")
    assert (restart.at_ms, restart.delay_ms) == (at, 500)
    assert (death.attempt, death.kind, death.at_ms) == (2, "driver died", died)
    assert "pid" in death.cause
    assert (end.attempt, end.kind, end.cause) == (3, "failed", "for good")


def test_a_running_attempt_and_a_good_end_are_no_failures(driver: Driver) -> None:
    driver.attempt()
    assert seen(driver).failures() == []
    driver.happens(JobEnded("FINISHED")).say(JobState.FINISHED)
    assert seen(driver).failures() == []
    driver.attempt().happens(JobEnded("CANCELED")).say(JobState.CANCELED)
    assert seen(driver).failures() == []


def test_what_the_supervisor_said_of_a_dead_driver_is_a_failure(driver: Driver) -> None:
    driver.attempt()
    driver.say(JobState.FAILED, cause="the driver was killed by signal 9")
    (row,) = seen(driver).failures()
    assert (row.attempt, row.kind, row.cause) == (1, "failed", "the driver was killed by signal 9")
    driver.happens(JobEnded("FAILED", "out of disk"))
    (row,) = seen(driver).failures()
    assert row.cause == "out of disk"


def test_the_attempt_of_a_lost_job_has_died(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=dead()).attempt()
    driver.clock.advance(5_000)
    driver.say(JobState.RUNNING)
    (death,) = seen(driver).failures()
    assert (death.attempt, death.kind, death.at_ms) == (1, "driver died", driver.clock.now_ms())
    with living() as supervisor:
        driver.say(JobState.RUNNING, supervisor=supervisor)
        assert [row.kind for row in seen(driver).failures()] == ["driver died"]


def test_of_attempts_that_history_has_forgotten_nothing_is_claimed(driver: Driver) -> None:
    for _ in range(3):
        driver.attempt()
    for name in ("history/1-0.json", "history/2-0.json"):
        driver.storage.delete(name)
    assert seen(driver).failures() == []


# -- savepoints


def test_savepoints_say_whether_they_are_there_and_how_to_restore_them(
    driver: Driver, tmp_path: Path
) -> None:
    driver.runs(script=("my job.py", "--words", "a b"))
    driver.savepoint(tmp_path / "sp one", "id-1", checkpoint=2, label="before")
    driver.savepoint(tmp_path / "sp2", "id-2", checkpoint=5, scheduled=True)
    (tmp_path / "sp2/_metadata.json").unlink()
    newest, oldest = seen(driver).savepoints()
    assert (newest.id, newest.exists, newest.scheduled) == ("id-2", False, True)
    assert (oldest.id, oldest.exists, oldest.label) == ("id-1", True, "before")
    assert oldest.path == str(tmp_path / "sp one")
    assert oldest.restore == (f"turnback run -s '{tmp_path}/sp one' 'my job.py' --words 'a b'")


def test_where_the_script_is_not_known_a_name_stands_for_it(driver: Driver, tmp_path: Path) -> None:
    driver.savepoint(tmp_path / "sp", "id")
    assert seen(driver).savepoints()[0].restore == f"turnback run -s {tmp_path}/sp job.py"


def test_a_storage_that_does_not_answer_is_not_taken_for_a_savepoint_that_is_gone(
    driver: Driver, tmp_path: Path
) -> None:
    driver.savepoint(tmp_path / "sp", "id")
    (tmp_path / "sp/_metadata.json").unlink()
    (tmp_path / "sp/_metadata.json").symlink_to("elsewhere")
    assert seen(driver).savepoints()[0].exists is None


def test_savepoints_of_all_jobs_are_sorted_by_time(tmp_path: Path) -> None:
    for day, name in ((2, "a"), (3, "b"), (1, "c")):
        other = Driver(tmp_path / "root", name)
        other.clock.advance(day * 86_400_000)
        other.savepoint(tmp_path / f"sp-{name}", f"id-{name}")
    rows = Jobs(str(tmp_path / "root")).savepoints()
    assert [(row.job, row.id) for row in rows] == [("b", "id-b"), ("a", "id-a"), ("c", "id-c")]


def test_a_damaged_record_hides_no_other_savepoint(driver: Driver, tmp_path: Path) -> None:
    driver.savepoint(tmp_path / "sp1", "id-1")
    driver.savepoint(tmp_path / "sp2", "id-2")
    (driver.path / "savepoints/id-1.json").write_bytes(b"damaged")
    assert [row.id for row in seen(driver).savepoints()] == ["id-2"]


# -- requests


def test_requests_go_from_waiting_to_their_end(driver: Driver) -> None:
    driver.say(JobState.RUNNING)
    job = seen(driver)
    row = job.ask(RequestKind.SAVEPOINT, target="/tmp/sp", label="l", note="n")
    assert (row.kind, row.state, row.savepoint) == ("savepoint", "WAITING", True)
    (request,) = driver.requests.open()
    assert (request.id, request.target, request.label, request.note) == (
        row.id,
        "/tmp/sp",
        "l",
        "n",
    )
    driver.requests.report(row.id, Progress(1, 4, 100, 55))
    running = job.request(row.id)
    assert (running.state, running.done, running.total) == ("RUNNING", 1, 4)
    assert (running.bytes, running.started_ms) == (100, 55)
    driver.requests.finish(row.id, RequestState.COMPLETED, path="file:///tmp/a%20b")
    ended = job.request(row.id)
    assert (ended.state, ended.path, ended.ended_ms) == ("COMPLETED", "/tmp/a b", START)
    later = job.ask(RequestKind.CANCEL)
    driver.requests.finish(later.id, RequestState.FAILED, error="no")
    assert [(r.id, r.state, r.error) for r in job.requests()] == [
        (later.id, "FAILED", "no"),
        (row.id, "COMPLETED", None),
    ]


@pytest.mark.parametrize("id_", ["", "no", "../job", "a/b", "\0", "x" * 100, None, 7])
def test_a_request_that_is_not_there_is_not_found(driver: Driver, id_: object) -> None:
    with pytest.raises(NotFoundError):
        seen(driver).request(id_)  # type: ignore[arg-type]


def test_a_damaged_request_is_shown_as_such(driver: Driver) -> None:
    job = seen(driver.say(JobState.RUNNING))
    bad, good = job.ask(RequestKind.SAVEPOINT), job.ask(RequestKind.SAVEPOINT)
    (driver.path / f"ops/{bad.id}.json").write_bytes(b"damaged")
    first, second = job.requests()
    assert (first.id, first.state) == (good.id, "WAITING")
    assert (second.id, second.kind, second.created_ms) == (bad.id, "unreadable", START)
    assert second.error is not None
    assert bad.id in second.error
    # Looking is not serving: the driver, not we, ends what it cannot read.
    assert driver.requests.result(bad.id) is None


@pytest.mark.parametrize("state", [s for s in JobState if s.is_terminal])
def test_nothing_can_be_asked_of_a_job_that_ended(driver: Driver, state: JobState) -> None:
    driver.say(state)
    for kind in RequestKind:
        with pytest.raises(JobNotRunningError, match=rf"is {state.value}.*turnback run"):
            seen(driver).ask(kind)
    assert seen(driver).requests() == []


def test_nothing_can_be_asked_of_a_lost_job(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=dead()).say(JobState.RUNNING)
    with pytest.raises(JobNotRunningError, match=r"is LOST.*died.*turnback run"):
        seen(driver).ask(RequestKind.SAVEPOINT)
    with living() as supervisor:
        driver.say(JobState.RUNNING, supervisor=supervisor)
        assert seen(driver).ask(RequestKind.SAVEPOINT).state == "WAITING"


def test_nothing_can_be_asked_before_a_driver_has_spoken(driver: Driver) -> None:
    with pytest.raises(JobNotRunningError, match="never been run"):
        seen(driver).ask(RequestKind.STOP)


def test_a_driver_elsewhere_can_be_asked(tmp_path: Path) -> None:
    driver = Driver(tmp_path, process=elsewhere()).say(JobState.RUNNING)
    driver.clock.advance(600_000)
    assert seen(driver).ask(RequestKind.STOP).state == "WAITING"


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, False),
        ({"state.savepoints.dir": "/sp"}, True),
        ({"execution.checkpointing.savepoint-dir": "/sp"}, True),
        ({"state.savepoints.dir": "/sp", "savepoints.on-stop": "false"}, False),
        ({"state.savepoints.dir": "/sp", "savepoints.on-stop": "true"}, True),
        ({"savepoints.on-stop": "true"}, False),
        ({"state.savepoints.dir": ""}, False),
    ],
)
def test_a_stop_takes_a_savepoint_if_configured(
    driver: Driver, settings: dict[str, str], taken: bool
) -> None:
    driver.runs(*((k, v, "code") for k, v in settings.items())).say(JobState.RUNNING)
    job = seen(driver)
    assert job.ask(RequestKind.STOP).savepoint is taken
    assert job.ask(RequestKind.STOP, savepoint=True).savepoint
    assert not job.ask(RequestKind.STOP, savepoint=False).savepoint
    assert not job.ask(RequestKind.CANCEL).savepoint
    assert job.ask(RequestKind.CANCEL, target="/there").savepoint
    assert job.ask(RequestKind.STOP, target="/there").savepoint
    assert job.ask(RequestKind.STOP, drain=True).savepoint
    assert job.ask("stop").savepoint is taken  # type: ignore[arg-type]


def test_a_setting_that_has_nothing_to_do_with_it_keeps_nobody_from_asking(driver: Driver) -> None:
    driver.runs(("savepoints.schedule.cron", "nonsense", "code")).say(JobState.RUNNING)
    assert seen(driver).ask(RequestKind.CANCEL).state == "WAITING"


def test_a_savepoint_is_written_as_configured(driver: Driver) -> None:
    driver.runs(("savepoints.format", "native", "code")).say(JobState.RUNNING)
    seen(driver).ask(RequestKind.SAVEPOINT)
    seen(driver).ask(RequestKind.SAVEPOINT, format=SavepointFormat.CANONICAL)
    types = [request.type for request in driver.requests.open()]
    assert sorted(types) == [SavepointFormat.CANONICAL, SavepointFormat.NATIVE]


@pytest.mark.parametrize(
    "what",
    [
        {"kind": RequestKind.SAVEPOINT, "target": "relative/dir"},
        {"kind": RequestKind.SAVEPOINT, "target": "/a/../b"},
        {"kind": RequestKind.CANCEL, "drain": True},
        {"kind": RequestKind.STOP, "savepoint": False, "target": "/a"},
        {"kind": RequestKind.SAVEPOINT, "label": "a\nb"},
        {"kind": RequestKind.STOP, "savepoint": False, "drain": True},
        {"kind": "dance"},
        {"kind": None},
        {"kind": RequestKind.SAVEPOINT, "format": "zip"},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    driver: Driver, what: dict[str, object]
) -> None:
    driver.say(JobState.RUNNING)
    with pytest.raises(ConfigurationError):
        seen(driver).ask(**what)  # type: ignore[arg-type]
    assert seen(driver).requests() == []


# -- snapshots


def test_a_snapshot_by_name_and_never_by_path(driver: Driver, tmp_path: Path) -> None:
    driver.attempt()
    number = driver.checkpoint()
    job = seen(driver)
    for text in ("latest", f"chk-{number}", str(number)):
        assert job.snapshot(text).name == f"chk-{number}"
    other = Driver(tmp_path, "other").attempt()
    path = f"{other.path}/checkpoints/chk-{other.checkpoint()}.json"
    for text in (path, f"file://{path}", "../other/checkpoints/chk-2.json", "chk-99", "nothing"):
        with pytest.raises(CheckpointNotFoundError):
            job.snapshot(text)


def test_an_attempt_started_event_without_snapshot_is_no_restore(driver: Driver) -> None:
    driver.attempt().happens(AttemptStarted(None))
    assert seen(driver).checkpoints().restored == 0
