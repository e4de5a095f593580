"""Ending a job at a checkpoint that is decided first: a stop, or a cancel with savepoint."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import (
    CorruptFileError,
    FormatVersionError,
)
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JobDirectory
from turnback.job.request import (
    Request,
    RequestKind,
    RequestOutcome,
    StopPoint,
    recorded_savepoint,
)
from turnback.job.requests import Requests

_LOG = logging.getLogger(__name__)


class PausableAttempt(Protocol):
    """An attempt that can be paused and ended."""

    def pause(self) -> None:
        """Wait for the end of the running epoch, and start no other until `resume`."""

    def resume(self) -> None:
        """Go on after `pause`."""

    def finish(self) -> None:
        """End the attempt as if its input had ended."""


class AttemptOverError(Exception):
    """The attempt ended before its checkpoint was taken; the next one can take it."""


class Shutdown:
    """Ends the job at the checkpoint that was decided for a request, and never later.

    A stop, or a cancel with savepoint, pauses the stream, takes a checkpoint, and writes down that
    the job ends with it. From then on, until the request has a result, every attempt begins
    paused, in this driver and in those after it. Thread-safe.
    """

    def __init__(
        self,
        directory: JobDirectory,
        requests: Requests,
        cancel: Callable[[], None],
        check_tenure: Callable[[], int],
    ) -> None:
        self._log = CheckpointLog(directory.storage)
        self._catalog = SavepointCatalog(directory.storage)
        self._requests = requests
        self._cancel = cancel
        self._check_tenure = check_tenure
        self._lock = threading.Lock()
        self._attempt: PausableAttempt | None = None
        self._paused: list[PausableAttempt] = []
        self._decision: StopPoint | None = None
        self.request: Request | None = None
        """What ends the job at a checkpoint that is decided already."""
        self.is_due = False
        """Whether everything is done but to end the job."""

    def find_decided(self) -> None:
        """Look for what an earlier driver has decided; to be called when the fence is taken."""
        with self._lock:
            if self.request is None:
                self._find_decided()

    def attempt_begins(self, attempt: PausableAttempt) -> None:
        """Let an attempt run no epoch if the job ends with the newest checkpoint."""
        with self._lock:
            self._attempt = attempt
            if self.request is None:
                self._find_decided()
            if self.is_due:
                self._end(attempt)
            elif self.request is not None:
                attempt.pause()
                self._paused.append(attempt)

    def pause(self, attempt: PausableAttempt) -> None:
        attempt.pause()
        with self._lock:
            self._paused.append(attempt)

    def resume(self) -> None:
        """Let the job go on: nothing is decided, or the request has a result by now."""
        with self._lock:
            self.request = self._decision = None
            self._resume()

    def decide(self, request: Request, attempt: PausableAttempt, checkpoint: Manifest) -> None:
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
                attempt=self._check_tenure(),
            )
            self._requests.record_stop_point(self._decision)
            self.request = request
        # In this order: whoever takes over after this look finds the decision.
        self._check_tenure()

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
            self.request, self.is_due = request, True
            if self._attempt is not None:
                self._end(self._attempt)
            self._resume()

    def _find_decided(self) -> None:
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
            self._decision = (
                None
                if newest is None
                else self._requests.stop_point(request.id, newest.number, newest.epoch)
            )
            self.is_due = self._decision is not None and not request.takes_savepoint
        return self.is_due or self._decision is not None

    def _end(self, attempt: PausableAttempt) -> None:
        assert self.request is not None
        if self.request.kind is RequestKind.CANCEL:
            self._cancel()
        else:
            attempt.finish()

    def _resume(self) -> None:
        for attempt in self._paused:
            attempt.resume()
        self._paused.clear()
