"""`check_sink`: drives a sink through every crash of the protocol, and tells what it broke."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from turnback.core.errors import ConfigurationError
from turnback.sinks.base import Sink
from turnback.sinks.idempotent import IdempotentSink
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.sinks.write_ahead import WriteAheadSink
from turnback.testing.stories import (
    FOR_ALL,
    TRANSACTIONAL,
    TRANSACTIONAL_WITH_CLAIM,
    WITH_CLAIM,
    WITH_LIST,
)
from turnback.testing.template_stories import (
    IDEMPOTENT,
    UPDATE_WITH_CLAIM,
    WITH_UPDATE,
    WRITE_AHEAD,
)
from turnback.testing.trial import (
    JOB,
    JOB_ID,
    PlayedJob,
    Promise,
    PromiseBrokenError,
    Story,
    Trial,
    check_elements,
)
from turnback.values.hints import as_type

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
        raise ConfigurationError(f"make_sink has to return a sink, got {first!r:.80}")
    if idempotent is None:
        idempotent = isinstance(first, IdempotentSink)
    stories, skipped = _stories(first, idempotent, update)
    broken: dict[Promise, str] = {}
    for promise, story in stories.items():
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory, JOB)
            place.mkdir()
            job = PlayedJob(JOB, JOB_ID, place)
            trial = Trial(make_sink(), make_sink, read, as_type(type), elements, job, update)
            _require_empty(trial)
            problem = _run(promise, story, trial)
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
    if type(sink).claim is Sink.claim:
        skipped |= dict.fromkeys(owned, "the sink has no claim()")
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
        skipped |= dict.fromkeys(WITH_LIST, "the sink has neither dangling() nor left_behind()")
    return stories, skipped


def _lists_what_is_left(sink: Sink) -> bool:
    if isinstance(sink, TwoPhaseCommitSink):
        template = TwoPhaseCommitSink
        if type(sink).left_behind is template.left_behind:  # it lists what dangling() finds
            return type(sink).dangling is not template.dangling
    return type(sink).left_behind is not Sink.left_behind


def _require_empty(trial: Trial) -> None:
    seen = list(trial.read(trial.sink))
    if seen:
        raise ConfigurationError(
            "make_sink has to return a sink with an empty target of its own each time; this one "
            f"shows {seen!r:.200}"
        )


def _run(promise: Promise, story: Story, trial: Trial) -> tuple[Promise, str] | None:
    """Tell a story; returns the promise that was broken and how, or None."""
    try:
        try:
            story(trial)
        finally:
            trial.close()
    except PromiseBrokenError as error:
        return error.promise, str(error)
    except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
        return promise, f"it raised {error.__class__.__name__}: {error}"
    return None
