"""Feeds dead letters back that were given to the job: what is next, and what of it."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass

from turnback.checkpoint.manifest import Fence, RedriveProgress
from turnback.core.clock import Clock
from turnback.driver.restore_plan import RestorePlan
from turnback.errors import TurnbackError
from turnback.job.redrive import RedriveInbox, RedriveOutcome
from turnback.plan.bad_records import ErrorPolicy, LetterId, decode_letter
from turnback.plan.plan import Plan
from turnback.worker.level import check_letter

_LOG = logging.getLogger(__name__)
_LOOK_S = 1.0
_SELDOM_S = 10.0
"""Time between two looks, and the same for programs that have no dead letters any more."""


@dataclass(frozen=True)
class RedriveInput:
    """The letters of one batch that are fed in an epoch, by uid of their operators."""

    batch: int
    letters: dict[str, tuple[bytes, ...]]


class Redriver:
    """Looks for batches that an attempt has not fed yet."""

    def __init__(self, plan: Plan, inbox: RedriveInbox, job_id: str, clock: Clock) -> None:
        self._operators = {op.uid: op for op in plan.operators()}
        self._inbox = inbox
        self._job_id = job_id
        self._clock = clock
        letters = any(op.on_error is ErrorPolicy.DEAD_LETTER for op in plan.operators())
        self._pause_s = _LOOK_S if letters else _SELDOM_S
        self._look_s = 0.0
        self._has_listed = False

    def next(self, redriven: RedriveProgress) -> RedriveInput | None:
        """What comes after what is `redriven`; None if nothing is there, or it is too soon."""
        now = self._clock.monotonic()
        if now < self._look_s:
            return None
        try:
            waiting = self._waiting(redriven.batches)
            if waiting:
                return self._feed(waiting[0], waiting[1:], redriven)
        except TurnbackError as error:  # the job does not depend on it
            self._has_listed = False  # what is waiting need not be the next number
            _LOG.warning("dead letters cannot be read and stay pending: %s", error)
        self._look_s = now + self._pause_s
        return None

    def _waiting(self, fed: int) -> list[int]:
        """The batches after the one that was fed last.

        Their numbers follow one another: to look for the next one costs a twelfth of a listing.
        """
        if self._has_listed and not self._inbox.has(fed + 1):
            return []
        numbers = self._inbox.numbers()
        self._has_listed = True
        return [number for number in numbers if number > fed]

    def _feed(self, number: int, later: list[int], redriven: RedriveProgress) -> RedriveInput:
        # One that was refused and given back again counts where it was given last.
        again: set[LetterId] = self._inbox.known(later)
        letters: defaultdict[str, tuple[bytes, ...]] = defaultdict(tuple)
        refused: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
        fed = coming = 0
        for place, data in enumerate(self._inbox.batch(number).letters):
            letter = decode_letter(data)
            if letter.job_id != self._job_id:
                refused["it belongs to another job"] += (place,)
            elif not redriven.has(letter.attempt, letter.epoch):
                coming += 1
            elif problem := check_letter(letter, self._operators.get(letter.operator)):
                refused[problem] += (place,)
            elif letter.id not in again:
                letters[letter.operator] += (data,)
                fed += 1
        outcome = RedriveOutcome(fed, coming, dict(refused))
        self._inbox.write_outcome(number, outcome)
        for problem, places in refused.items():
            _LOG.warning("%d dead letters are not redriven: %s", len(places), problem)
        if coming:
            _LOG.warning(
                "%d dead letters are not redriven: the job was reset to a point before them and "
                "reads their elements again", coming,
            )  # fmt: skip
        _LOG.info("redriving %d dead letters", fed)
        return RedriveInput(number, dict(letters))


def redriven_at_start(matched: RestorePlan | None, fence: Fence) -> RedriveProgress:
    """How far an attempt is with dead letters when it starts."""
    if matched is None:
        return RedriveProgress().begin(fence.attempt, 0)
    snapshot = matched.snapshot
    if snapshot.job_id != fence.job_id:  # a fork, which has letters of its own
        return RedriveProgress().begin(fence.attempt, snapshot.epoch)
    is_newest = matched.own is not None and (matched.own.number,) == fence.manifests[-1:]
    before = snapshot.document.redriven
    return before.begin(fence.attempt, snapshot.epoch, continues=is_newest)
