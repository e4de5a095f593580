"""`check_sink`: drives a sink through every crash of the protocol, and tells what it broke."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from turnback.errors import ConfigurationError
from turnback.sinks.base import Sink
from turnback.sinks.idempotent import IdempotentSink
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.sinks.write_ahead import WriteAheadSink
from turnback.testing.protocol_run import (
    JOB,
    JOB_ID,
    PlayedJob,
    Promise,
    PromiseBrokenError,
    Story,
    Trial,
    check_elements,
    let_fail,
)
from turnback.testing.scenarios import (
    FOR_ALL,
    TRANSACTIONAL,
    TRANSACTIONAL_WITH_CLAIM,
    WITH_CLAIM,
    WITH_LIST,
)
from turnback.values.columns import Batch
from turnback.values.hints import as_type

# -- for sinks on the write-ahead template


def _whole(trial: Trial) -> None:
    a, b, *_ = trial.elements
    driver = trial.driver(1)
    transactions = trial.prepared(1, 1, a) + trial.prepared(1, 1, b, partition=1)
    path, data = max(trial.staged().items())
    path.write_bytes(data[:-1])
    let_fail(lambda: driver.commit(transactions))
    trial.expect([], "publishing that failed in the middle of an epoch")
    path.write_bytes(data)
    driver.commit(transactions)
    trial.expect([a, b], "publishing again, after it failed in the middle")


def _published_once(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    transactions = trial.prepared(1, 1, a)
    staged = trial.staged()
    driver = trial.driver(2)
    driver.recover(transactions)
    # The first driver had asked the target and read the files before it was paused.
    for path, data in staged.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    zombie = trial.driver(1, change=_asked_before)
    let_fail(lambda: zombie.commit(transactions))
    trial.expect([a], "two drivers published the same epoch")
    late = trial.prepared(1, 2, b)
    driver.commit(trial.prepared(2, 2, b))
    second = trial.driver(1, change=_asked_before)
    let_fail(lambda: second.commit(late))
    trial.expect([a, b], "the older of two drivers published last")


def _moved(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    driver = trial.driver(1)
    promised = trial.prepared(1, 1, a)
    copied = trial.copied_job()
    driver.commit(promised)
    _go_on_elsewhere(copied)
    driver = copied.started(2, promised)
    trial.expect([a], "a copy of the job continued with the same output to publish")
    promised = copied.prepared(2, 2, b)
    driver.commit(promised)
    # Killed before that was recorded, so the next driver gets the same output.
    moved = copied.moved_job()
    _go_on_elsewhere(moved)
    driver = moved.started(3, promised)
    driver.commit(moved.prepared(3, 3, c))
    trial.expect([a, b, c], "the job continued after its directory was moved")


def _go_on_elsewhere(trial: Trial) -> None:
    """The job is in another place than it was, so its target is handed over if it has an owner."""
    if trial.has_claim:
        trial.take_over()


def _asked_before(sink: WriteAheadSink) -> None:
    """Let a driver have asked before anything was published; what it asks later is answered."""
    answers = [0]
    now = sink.published
    vars(sink)["published"] = lambda ctx: answers.pop() if answers else now(ctx)


# -- for idempotent sinks


def _durable(trial: Trial) -> None:
    a, b, *_ = trial.elements
    trial.driver(1)
    trial.prepared(1, 1, a, b)
    trial.expect([a, b], "the end of the epoch")


def _written_again(trial: Trial) -> None:
    a, b, c, *_ = trial.elements
    trial.driver(1)
    trial.killed(1, 1, a)
    for _ in range(2):
        trial.prepared(1, 1, a, b)
    trial.driver(2).recover([])
    trial.prepared(2, 1, a, b)
    trial.prepared(2, 2, c)
    trial.expect([a, b, c], "an epoch was written by several attempts")


def _newer_stays(trial: Trial) -> None:
    older, newer = trial.versions
    trial.driver(1)
    late = trial.written(1, 9)
    trial.driver(2)
    trial.prepared(2, 8, newer)
    let_fail(lambda: late.write(Batch(trial.type, [older])))  # a target may also refuse it
    let_fail(late.prepare)
    trial.expect([newer], "a late write by a task of an older attempt")


def _last_stays(trial: Trial) -> None:
    older, newer = trial.versions
    trial.driver(1)
    trial.prepared(1, 1, older, newer)
    trial.expect([newer], "two values of a key in one epoch")


def _overwritten_again(trial: Trial) -> None:
    older, newer = trial.versions
    trial.driver(1)
    trial.prepared(1, 9, newer)
    trial.driver(2)
    trial.prepared(2, 3, older)
    trial.expect([older], "a start from an older savepoint")


def _written_by_another_job(trial: Trial) -> None:
    older, newer = trial.versions
    trial.driver(5)
    trial.prepared(5, 9, older)
    other = trial.other_job().elsewhere()
    other.driver(1)
    other.prepared(1, 1, newer)
    other.expect([newer], "a write of another job, which counts attempts by itself")


def _written_by_a_copy(trial: Trial) -> None:
    older, newer = trial.versions
    trial.driver(1)
    copied = trial.copied_job().elsewhere()
    trial.driver(5)
    trial.prepared(5, 9, older)
    copied.driver(2)
    copied.prepared(2, 1, newer)
    copied.expect([newer], "a write of a copy of the job, in an attempt of its own")


def _written_by_former_owner(trial: Trial) -> None:
    older, newer = trial.versions
    trial.driver(5)
    trial.prepared(5, 9, older)
    late = trial.written(5, 10)
    other = trial.other_job()
    other.take_over()
    other.driver(1)
    other.prepared(1, 1, newer)
    trial.expect([newer], "a write of the job that took the target over")
    let_fail(lambda: late.write(Batch(trial.type, [older])))
    let_fail(late.prepare)
    let_fail(lambda: trial.prepared(5, 11, older))
    trial.expect([newer], "late writes of the job that had the target before")


def _written_by_a_restored_job(trial: Trial) -> None:
    older, newer = trial.versions
    trial.driver(1)
    restore = trial.backup()
    trial.driver(2)
    trial.prepared(2, 9, older)
    restored = restore()
    restored.job.take(2, "another driver")
    try:
        restored.driver(2)
        restored.prepared(2, 3, newer)
    except Exception:  # noqa: BLE001 - refused, so the user knows
        return
    trial.expect([newer], "a write of a job directory that was restored from a backup")


WRITE_AHEAD: dict[Promise, Story] = {
    Promise.WHOLE: _whole,
    Promise.PUBLISHED_ONCE: _published_once,
    Promise.MOVED: _moved,
}
IDEMPOTENT: dict[Promise, Story] = {Promise.DURABLE: _durable, Promise.REPLAYED: _written_again}
WITH_UPDATE: dict[Promise, Story] = {
    Promise.NEWER_STAYS: _newer_stays,
    Promise.LAST_STAYS: _last_stays,
    Promise.TURNED_BACK: _overwritten_again,
    Promise.OTHER_JOBS: _written_by_another_job,
    Promise.COPIED: _written_by_a_copy,
}
UPDATE_WITH_CLAIM: dict[Promise, Story] = {
    Promise.TAKEN_OVER: _written_by_former_owner,
    Promise.RESTORED: _written_by_a_restored_job,
}


S = TypeVar("S", bound=Sink)


class SinkPromiseBroken(AssertionError):
    """A sink has broken promises; the message has a line for each.

    Attributes:
        broken: What happened, by promise.
    """

    def __init__(self, sink: str, broken: dict[Promise, str], checked: int) -> None:
        lines = [f"{sink} broke {len(broken)} of {checked} promises:"]
        lines += [f"- {promise.value}: {problem}" for promise, problem in broken.items()]
        super().__init__("\n".join(lines))
        self.broken = broken


@dataclass(frozen=True)
class SinkReport:
    """What was checked of a sink, all of it kept; and what was not checked, and why."""

    kept: tuple[Promise, ...]
    skipped: dict[Promise, str]

    def __str__(self) -> str:
        lines = [f"kept: {promise.value}" for promise in self.kept]
        return "\n".join(lines + [f"not checked: {p.value} ({w})" for p, w in self.skipped.items()])


def check_sink(
    make_sink: Callable[[], S],
    read: Callable[[S], Iterable[Any]],
    *,
    type: Any,
    elements: Sequence[Any],
    update: tuple[Any, Any] | None = None,
    idempotent: bool | None = None,
) -> SinkReport:
    """Check that a sink keeps what sinks promise, whatever crashes; without Spark.

    Tasks and drivers are played in this process, with pickled copies of the sink; a kill leaves
    them where they are. What one process prepares and another commits is done by real processes
    that are killed: the sink's class has to be importable there, or be defined in the main script.

    Args:
        make_sink: Makes a sink with a target of its own, which is empty. Called once for each
            promise.
        read: Returns the elements that a reader of the target sees, in any order, given the sink.
            It must read as your readers do: committed data only.
        type: Type of the elements, as `output_type` of `map`.
        elements: At least four, all different; of different keys if the target has keys.
        update: For an idempotent sink, an older and a newer element of one key.
        idempotent: Whether the sink writes from tasks and has no transactions; by default this is
            so for an `IdempotentSink`.

    Returns:
        What was checked.

    Raises:
        SinkPromiseBroken: Promises are broken: an AssertionError, whose message says which and how.
        ConfigurationError: An argument cannot be used.
    """
    check_elements(elements)
    first = make_sink()
    if not isinstance(first, Sink):
        raise ConfigurationError(f"make_sink must return a sink, got {first!r:.80}")
    if idempotent is None:
        idempotent = isinstance(first, IdempotentSink)
    stories, skipped = _stories(first, idempotent, update)
    broken: dict[Promise, str] = {}
    for promise, story in stories.items():
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary, JOB)
            directory.mkdir()
            job = PlayedJob(JOB, JOB_ID, directory)
            kind = as_type(type)
            trial = Trial(promise, make_sink(), make_sink, read, kind, elements, job, update)
            _require_empty(trial)
            problem = _run(story, trial)
        if problem is not None:
            broken.setdefault(*problem)
    if broken:
        raise SinkPromiseBroken(first.__class__.__name__, broken, len(stories))
    return SinkReport(tuple(stories), skipped)


def _stories(
    sink: Sink, idempotent: bool, update: tuple[Any, Any] | None
) -> tuple[dict[Promise, Story], dict[Promise, str]]:
    stories = dict(FOR_ALL)
    skipped: dict[Promise, str] = {}
    stories |= IDEMPOTENT if idempotent else TRANSACTIONAL
    if isinstance(sink, WriteAheadSink):
        stories |= WRITE_AHEAD
    owned = {**WITH_CLAIM, **(UPDATE_WITH_CLAIM if idempotent else TRANSACTIONAL_WITH_CLAIM)}
    if type(sink).acquire_target is Sink.acquire_target:
        skipped |= dict.fromkeys(owned, "the sink has no acquire_target()")
        owned = {}
    if idempotent and update is None:
        without = {**WITH_UPDATE, **(UPDATE_WITH_CLAIM if owned else {})}
        skipped |= dict.fromkeys(without, "give `update`, two elements of one key")
        owned = {promise: story for promise, story in owned.items() if promise not in without}
    elif idempotent:
        stories |= WITH_UPDATE
    stories |= owned
    if not idempotent and _lists_what_is_left(sink):
        stories |= WITH_LIST
    elif not idempotent:
        skipped |= dict.fromkeys(WITH_LIST, "the sink has neither dangling() nor list_orphans()")
    return stories, skipped


def _lists_what_is_left(sink: Sink) -> bool:
    if isinstance(sink, TwoPhaseCommitSink):
        template = TwoPhaseCommitSink
        if type(sink).list_orphans is template.list_orphans:  # it lists what dangling() finds
            return type(sink).dangling is not template.dangling
    return type(sink).list_orphans is not Sink.list_orphans


def _require_empty(trial: Trial) -> None:
    seen = list(trial.read(trial.sink))
    if seen:
        raise ConfigurationError(
            "make_sink must return a sink with its own empty target each time; this one shows "
            f"{seen!r:.200}"
        )


def _run(story: Story, trial: Trial) -> tuple[Promise, str] | None:
    """Tell a story; returns the promise that was broken and how, or None."""
    try:
        try:
            story(trial)
        finally:
            trial.close()
    except PromiseBrokenError as error:
        return error.promise, str(error)
    except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
        return trial.promise, f"it raised {error.__class__.__name__}: {error}"
    return None
