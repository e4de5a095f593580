"""Gives dead letters back to a job, and tells what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.core.errors import ConfigurationError
from turnback.job.redrive import RedriveInbox
from turnback.plan.dead_letters import decode_letter
from turnback.views.job import Job


class RedriveRow(msgspec.Struct, frozen=True, kw_only=True):
    """How it is with dead letters that were to be given back to a job.

    Attributes:
        letters: How many there were.
        given: How many of them were given back now.
        before: How many had been given back before, and were left alone.
        fed: How many the job has been fed, once it has confirmed them.
        coming: How many it was not, because it was turned back to a time before them, so that their
            elements come again.
        refused: How many it was not for another reason, by that.
        done: Whether a checkpoint has confirmed all of it.
    """

    job: str
    letters: int
    given: int = 0
    before: int = 0
    fed: int = 0
    coming: int = 0
    refused: dict[str, int] = {}
    done: bool = False


class Redrive:
    """Dead letters on their way back to a job.

    Args:
        job: The job that wrote them.
        letters: What `read_letters` gives.
        operator: Only those of this operator, if given.
    """

    def __init__(self, job: Job, letters: Sequence[bytes], operator: str | None = None) -> None:
        self._job = job
        job_id = job.info().job_id
        self._inbox = RedriveInbox(job.directory.storage, job_id)
        decoded = [(data, decode_letter(data)) for data in letters]
        uids = sorted({letter.operator for _, letter in decoded})
        if operator is not None and operator not in uids:
            raise ConfigurationError(
                f"there are no dead letters of operator {operator!r}; there are some of "
                f"{', '.join(map(repr, uids)) or 'none'}"
            )
        others = sum(letter.job_id != job_id for _, letter in decoded)
        if others:
            raise ConfigurationError(
                f"{others} of {len(decoded)} dead letters are not of job {job.name!r} as it is "
                "now: of another job, or of one that was started afresh since. Give back to each "
                "job its own"
            )
        self._letters = [
            data for data, letter in decoded if operator is None or letter.operator == operator
        ]
        self._batches: list[int] = []
        self._given = 0

    def count(self) -> RedriveRow:
        """What `give` would do."""
        known = self._inbox.known(self._inbox.numbers())
        before = sum(decode_letter(data).id in known for data in self._letters)
        count = len(self._letters)
        return RedriveRow(job=self._job.name, letters=count, given=count - before, before=before)

    def give(self) -> RedriveRow:
        """Give the letters back that have not been yet; the job takes them when it runs."""
        self._batches = self._inbox.add(self._letters)
        self._given = sum(len(self._inbox.batch(number).letters) for number in self._batches)
        return self.look()

    def look(self) -> RedriveRow:
        """How far the job is with them."""
        latest = CheckpointLog(self._job.directory.storage).latest()
        upto = latest.redriven.batches if latest is not None else 0
        done = [number for number in self._batches if number <= upto]
        outcomes = [outcome for n in done if (outcome := self._inbox.outcome(n)) is not None]
        refused: Counter[str] = Counter()
        for outcome in outcomes:
            refused.update({why: len(places) for why, places in outcome.refused.items()})
        return RedriveRow(
            job=self._job.name,
            letters=len(self._letters),
            given=self._given,
            before=len(self._letters) - self._given,
            fed=sum(outcome.fed for outcome in outcomes),
            coming=sum(outcome.coming for outcome in outcomes),
            refused=dict(refused),
            done=len(done) == len(self._batches),
        )
