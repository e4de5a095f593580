"""Ending a job at a checkpoint that is decided first: a stop, or a cancel with savepoint."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import CorruptFileError, FormatVersionError
from turnback.driver.attempt import Attempt
from turnback.driver.context import Tenure
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JobDirectory
from turnback.job.request import Request, RequestKind, RequestOutcome, StopPoint, recorded_savepoint
from turnback.job.requests import Requests

_LOG = logging.getLogger(__name__)


class AttemptOverError(Exception):
    """The attempt ended before its checkpoint was taken; the next one can take it."""


class Shutdown:
    """Ends the job at the checkpoint that was decided for a request, and never later.

    A stop, or a cancel with savepoint, pauses the stream, takes a checkpoint, and writes down that
    the job ends with it. From then on, until the request has a result, every attempt begins
    paused, in this driver and in those after it. The checkpoint of a drained job is that decision
    itself, and holds even if the savepoint fails. Thread-safe.
    """

    def __init__(
        self,
        directory: JobDirectory,
        requests: Requests,
        tenure: Tenure,
        cancel: Callable[[], None],
    ) -> None:
        self._log = CheckpointLog(directory.storage)
        self._catalog = SavepointCatalog(directory.storage)
        self._requests = requests
        self._cancel = cancel
        self._tenure = tenure
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._paused: list[Attempt] = []
        self._decision: StopPoint | None = None
        self.request: Request | None = None
        """What ends the job at a checkpoint that is decided already."""
        self.is_due = False
        """Whether everything is done but to end the job."""

    def restore(self) -> None:
        """Take up what an earlier driver has decided; to be called when the fence is taken."""
        with self._lock:
            self._restore()

    def attempt_begins(self, attempt: Attempt) -> None:
        """Let an attempt run no epoch if the job ends with the newest checkpoint."""
        with self._lock:
            self._attempt = attempt
            self._restore()
            if self.is_due:
                self._end(attempt)
            elif self.request is not None:
                attempt.pause()
                self._paused.append(attempt)

    def pause(self, attempt: Attempt) -> None:
        attempt.pause()
        with self._lock:
            self._paused.append(attempt)

    def resume(self) -> None:
        """Let the job go on: nothing is decided, or the request has a result by now."""
        with self._lock:
            self.request = self._decision = None
            self._resume()

    def decide(self, request: Request, attempt: Attempt, checkpoint: Manifest) -> None:
        """Write down that the job ends with a checkpoint of a paused attempt.

        Raises:
            AttemptOverError: Another attempt has begun, and may have run epochs after it.
            FencedError: Another driver has taken over, likewise.
        """
        with self._lock:
            if self._attempt is not attempt:
                raise AttemptOverError
            self._decision = StopPoint(
                id=request.id,
                checkpoint=checkpoint.number,
                epoch=checkpoint.epoch,
                attempt=self._tenure.check(),
            )
            self._requests.record_stop_point(self._decision)
            self.request = request
        # In this order: whoever takes over after this check finds the decision.
        self._tenure.check()

    def drained_by(self) -> str:
        """The request that has drained the job, to be served whoever starts it; empty for none."""
        newest = self._log.latest()
        return "" if newest is None else newest.drained_by

    def decided_checkpoint(self, request: Request) -> Manifest | None:
        """Return the checkpoint with which a request ends the job, if that is decided."""
        with self._lock:
            decision = self._decision
        if decision is None or decision.id != request.id:
            return None
        slot = self._log.get(decision.checkpoint)
        assert isinstance(slot, Manifest)
        return slot

    def finish(self, request: Request) -> None:
        """All is done that was asked for: end the job, also if its attempt has failed meanwhile."""
        with self._lock:
            self.request = request
            self.is_due = True
            if self._attempt is not None:
                self._end(self._attempt)
            self._resume()

    def _restore(self) -> None:
        if self.request is not None:
            return
        for request in self._requests.open():
            if request.kind is RequestKind.SAVEPOINT:
                continue
            newest = self._log.latest()
            try:
                ends = self._is_decided(request, newest)
            except (CorruptFileError, FormatVersionError) as e:
                why = f"the checkpoint to end the job with cannot be read: {e}. Ask again"
                self._requests.finish(request.id, RequestOutcome.failed(why))
                continue
            if ends:
                _LOG.info("the job ends with its newest checkpoint: a %s", request.kind.value)
                self.request = request
                return

    def _is_decided(self, request: Request, newest: Manifest | None) -> bool:
        if request.kind is RequestKind.CANCEL and not request.savepoint:
            self._cancel()
            self.is_due = True
        elif request.takes_savepoint and recorded_savepoint(request, self._catalog) is not None:
            self.is_due = True
        else:
            self._decision = None
            if newest is not None:
                point = self._requests.stop_point(request.id, newest.number, newest.epoch)
                if newest.drained_by == request.id:
                    # What a drain has brought out cannot be taken back, so it is decided with that.
                    point = StopPoint(
                        id=request.id,
                        checkpoint=newest.number,
                        epoch=newest.epoch,
                        attempt=newest.attempt,
                    )
                self._decision = point
            self.is_due = self._decision is not None and not request.takes_savepoint
        return self.is_due or self._decision is not None

    def _end(self, attempt: Attempt) -> None:
        assert self.request is not None
        if self.request.kind is RequestKind.CANCEL:
            self._cancel()
        else:
            attempt.finish()

    def _resume(self) -> None:
        for attempt in self._paused:
            attempt.resume()
        self._paused.clear()
