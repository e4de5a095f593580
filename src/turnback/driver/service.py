"""What users ask of a running job: savepoints, to stop, to cancel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Protocol

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.checkpoint.retention import PinnedCheckpoint
from turnback.driver.attempt import Attempt
from turnback.driver.context import FenceGuard, JobContext
from turnback.driver.job import describe_error
from turnback.driver.savepoints import JobSavepoints
from turnback.errors import (
    CheckpointError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    JobFailedError,
    StorageError,
    TurnbackError,
)
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JobDirectory
from turnback.job.request import (
    Request,
    RequestKind,
    RequestOrigin,
    RequestOutcome,
    RequestSpec,
    RequestState,
    StopPoint,
    recorded_savepoint,
)
from turnback.job.requests import Requests
from turnback.job.status import JobState
from turnback.snapshot.metadata import Origin

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
        fence_guard: FenceGuard,
        cancel: Callable[[], None],
    ) -> None:
        self._log = CheckpointLog(directory.storage)
        self._catalog = SavepointCatalog(directory.storage)
        self._requests = requests
        self._cancel = cancel
        self._fence_guard = fence_guard
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

        Raises `AttemptOverError` or `FencedError` if another attempt, here or elsewhere, has begun
        and may have run epochs after it.
        """
        with self._lock:
            if self._attempt is not attempt:
                raise AttemptOverError
            self._decision = StopPoint(
                id=request.id,
                checkpoint=checkpoint.number,
                epoch=checkpoint.epoch,
                attempt=self._fence_guard.check(),
            )
            self._requests.record_stop_point(self._decision)
            self.request = request
        # In this order: whoever takes over after this check finds the decision.
        self._fence_guard.check()

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
                why = (
                    f"cannot read the checkpoint to end the job with: {e}. Submit the request again"
                )
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


_POLL_S = 1.0
_WAIT_S = 0.1
_BEFORE_UPGRADE = "before-upgrade"
_KEPT_REQUESTS = 100
_PRUNE_AFTER = 20
"""After so many answers, requests that ended long ago are forgotten."""


class JobControl(Protocol):
    """What requests can do with the running job; see `JobRunner`."""

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that is running."""

    @property
    def origin(self) -> Origin | None:
        """The snapshot of another job, or a savepoint, that the job was started from."""

    def cancel(self) -> None:
        """End the job."""


class RequestService:
    """Serves requests to a running job.

    Requests come as files in the job directory, so anybody who can write there can ask. The service
    lives as long as the driver, over all its attempts. One savepoint is written at a time; a plain
    cancel waits for none. A stop or cancel is answered after the job has ended.
    """

    def __init__(self, context: JobContext, job: JobControl) -> None:
        directory = context.directory
        self._engine = context.engine
        self._directory = directory
        self._settings = context.spec.savepoints
        self._clock = context.clock
        self._job = job
        self._name = directory.name
        self._fence_guard = FenceGuard(directory)
        self._catalog = SavepointCatalog(directory.storage)
        self._requests = Requests(directory.storage, context.clock, self._fence_guard.check)
        self._shutdown = Shutdown(directory, self._requests, self._fence_guard, job.cancel)
        self._savepoints = JobSavepoints(context, self._requests)
        self._own: set[str] = set()
        self._drained: Manifest | None = None
        """The checkpoint with which the job ends because it was drained, whatever else happens."""
        self._answers = 0
        self._before: JobState | None = None
        self._resumed = context.spec.resumed  # what was asked of the driver that died still holds
        self._supervised = context.spec.run is not None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._serving: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="turnback-service", daemon=True)
        self._last_scheduled: int | None = None

    # -- for the runner

    def start(self, created_ms: int) -> None:
        """Begin to serve requests; to be called before the driver writes a status.

        A schedule counts from when the job was created.
        """
        self._before = self._end_state()
        if self._settings.is_scheduled:
            # A last time in the future, by a clock that was wrong, must not switch it off.
            last = self._savepoints.last_scheduled(created_ms)
            self._last_scheduled = min(last, self._clock.now_ms())
        self._thread.start()

    def took_over(self, attempt: int) -> None:
        """A fence was taken: from now on requests are answered here and nowhere else."""
        with self._lock:
            first = self._fence_guard.attempt is None
            self._fence_guard.attempt = attempt
            try:
                if first and not self._resumed:
                    own = frozenset((*self._own, self._shutdown.drained_by()))
                    self._requests.answer_leftovers(self._catalog, self._before, own)
                if first:
                    self._requests.prune(_KEPT_REQUESTS)
            except StorageError as e:
                _LOG.warning("job %r: cannot clean up old requests: %s", self._name, e)
        self._shutdown.restore()
        self._wake.set()

    def attempt_begins(self, attempt: Attempt) -> None:
        """An attempt is about to run; it runs no epoch if the job ends with what it starts from."""
        self._shutdown.attempt_begins(attempt)

    def save_before_upgrade(self, manifest: Manifest) -> None:
        """Write a savepoint of what a changed program is about to start from, if configured.

        This is no request, as it cannot be served later from another state. There is one savepoint
        for one checkpoint, however often the upgrade is tried. Its sinks are settled, and nothing
        deletes its files yet.
        """
        if self._settings.directory is None or not self._settings.on_stop:
            return
        if self._shutdown.request is None:
            self._savepoints.take_once(manifest, self._job.origin, _BEFORE_UPGRADE)

    def save_before_failure(self, label: str) -> str | None:
        """Write a savepoint of the newest checkpoint that all sinks have committed, if configured.

        For a job that cannot go on until somebody has done something. Returns where it is; None if
        there is none: the job's checkpoints have all it needs.
        """
        if self._settings.directory is None or not self._settings.on_stop:
            return None
        try:
            log = CheckpointLog(self._directory.storage)
            committed = log.committed()
            manifest = log.get(committed) if committed else None
            if isinstance(manifest, Manifest):
                return self._savepoints.take_once(manifest, self._job.origin, label).path
        except Exception as e:  # noqa: BLE001 - the job fails anyway, for another reason
            _LOG.warning("job %r: cannot take a savepoint before it fails: %s", self._name, e)
        return None

    def close(self, *, give_up: bool) -> None:
        """Answer what is still open, as the job has ended; `give_up` a savepoint under way."""
        self._ended.set()
        self._wake.set()
        if give_up:
            self._savepoints.give_up()
        self._thread.join()
        if self._serving is not None:
            self._serving.join()
        if self._fence_guard.attempt is None:
            return
        try:
            state = self._end_state()
            if state is None and self._supervised:
                return  # the supervisor starts another driver, which goes on with them
            self._requests.answer_ended(self._catalog, state)
            self._requests.prune(_KEPT_REQUESTS)
        except (FencedError, StorageError) as e:
            _LOG.warning("job %r: cannot answer open requests: %s", self._name, e)

    # -- for the program that runs the job

    def submit(self, spec: RequestSpec) -> Request:
        """Ask for something from within this process; see `Requests.submit`."""
        with self._lock:  # or it is taken for a leftover in between
            request = self._requests.submit(spec)
            self._own.add(request.id)
        self._wake.set()
        return request

    def wait(self, request: Request, is_over: Callable[[], bool]) -> str | None:
        """Wait for the end of a request; return the directory of its savepoint, if it took one."""
        while True:
            over = is_over()
            result = self._requests.wait(request.id, 0.5)
            if result is not None and result.state is RequestState.FAILED:
                what = f"job {self._name!r}: {request.kind.value} failed"
                raise CheckpointError(f"{what}: {result.error}")
            if result is not None:
                return result.path
            if over:
                raise JobFailedError(f"job {self._name!r} ended before it answered the request")

    # -- the loop

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(_POLL_S)
            self._wake.clear()
            try:
                self._submit_scheduled()
                with self._lock:
                    self._poll()
            except FencedError as e:
                _LOG.warning("job %r: this driver no longer serves requests: %s", self._name, e)
                return
            except Exception as e:  # noqa: BLE001 - a dead thread would serve nobody any more
                _LOG.warning("job %r: cannot serve requests, retrying: %s", self._name, e)

    def _poll(self) -> None:
        if self._fence_guard.attempt is None:
            return
        if self._serving is not None and not self._serving.is_alive():
            self._serving = None
        for request in self._requests.open_if_new():
            if request.kind is RequestKind.CANCEL and not request.savepoint:
                self._fence_guard.check()
                self._job.cancel()  # answered when that is done
            elif self._serving is None and self._is_next(request):
                self._fence_guard.check()
                self._serving = threading.Thread(
                    target=self._serve, args=(request,), name="turnback-savepoint", daemon=True
                )
                self._serving.start()
        if self._answers >= _PRUNE_AFTER:
            self._answers = 0
            self._requests.prune(_KEPT_REQUESTS)

    def _is_next(self, request: Request) -> bool:
        """Whether a request may be served now: what ends the job comes before all others."""
        ending = self._shutdown.request
        return not self._shutdown.is_due and (ending is None or ending.id == request.id)

    def _submit_scheduled(self) -> None:
        last = self._last_scheduled
        now = self._clock.now_ms()
        if last is None or not self._settings.is_due(last, now):
            return
        self._last_scheduled = now
        spec = RequestSpec(
            RequestKind.SAVEPOINT, type=self._settings.format, origin=RequestOrigin.SCHEDULE
        )
        self._requests.submit(spec)

    def _end_state(self) -> JobState | None:
        try:
            status = self._directory.status()
        except StorageError as e:
            _LOG.warning("job %r: cannot read its status: %s", self._name, e)
            return None
        return status.state if status is not None and status.state.is_terminal else None

    # -- one request

    def _serve(self, request: Request) -> None:
        ends = request.kind is not RequestKind.SAVEPOINT
        try:
            if ends:
                self._end_with(request)
            else:
                self._save(request)
        except FencedError as e:  # whoever has taken over answers
            _LOG.warning("job %r: %s request skipped: %s", self._name, request.kind.value, e)
            if ends:
                self._shutdown.resume()
        except Exception as e:  # noqa: BLE001 - whatever it is, it is the answer to the request
            lost = self._engine.lost() if self._supervised else None
            kind = request.kind.value
            if lost is not None:  # this driver ends, and the next one answers
                _LOG.warning("job %r: %s request stays open: %s", self._name, kind, lost)
            else:
                why = describe_error(e)
                drained = self._drained
                if drained is not None:
                    why = (
                        f"{why}. The job has ended anyway, because it was drained: "
                        f"{drained.name} contains what the savepoint would contain"
                    )
                _LOG.warning("job %r: %s request failed: %s", self._name, kind, why)
                # Unless that is durable, the job still ends where it was decided.
                answered = self._answer(request, RequestOutcome.failed(why))
                if drained is not None:
                    self._shutdown.finish(request)
                elif answered or self._shutdown.request is None:
                    self._shutdown.resume()
        self._wake.set()  # the next one may be waiting

    def _save(self, request: Request) -> None:
        pinned = None
        while pinned is None:
            with suppress(AttemptOverError):
                pinned = self._checkpoint(self._attempt())
        with pinned:
            entry = self._savepoints.take(request, pinned.manifest, self._job.origin)
        self._answer(request, RequestOutcome(RequestState.COMPLETED, entry.path, entry.checkpoint))

    def _end_with(self, request: Request) -> None:
        """End the job with a checkpoint that is decided first; `close` answers."""
        with ExitStack() as stack:
            manifest = self._shutdown.decided_checkpoint(request)
            if manifest is None:
                if request.drain:  # better to know before than after it
                    self._savepoints.check(request)
                manifest = self._decide(request, stack)
            if manifest.drained_by == request.id:
                self._drained = manifest
            if request.takes_savepoint:
                self._savepoints.take(request, manifest, self._job.origin)
        if self._drained is None and self._requests.result(request.id) is not None:
            self._shutdown.resume()  # a driver before this one had failed it already
        else:
            self._shutdown.finish(request)

    def _decide(self, request: Request, stack: ExitStack) -> Manifest:
        """Pause the stream, and decide that the job ends with the checkpoint of its last epoch.

        The stack keeps the checkpoint's files. An attempt that was drained either lives to write a
        checkpoint that says so, or leaves no trace: it is over then, and the next one goes on as
        if nothing had happened.
        """
        drained: Attempt | None = None
        failure: Exception | None = None
        while True:
            try:
                attempt = self._attempt(drained)
            except CheckpointError as ended:
                raise failure or ended from None
            manifest = self._shutdown.decided_checkpoint(request)
            if manifest is not None:
                return manifest  # the attempt before this one has lived to write it
            if failure is not None:
                raise failure
            self._shutdown.pause(attempt)
            try:
                if request.drain:
                    drained = attempt
                    attempt.drain(request.id)
                pinned = stack.enter_context(self._checkpoint(attempt))
                self._shutdown.decide(request, attempt, pinned.manifest)
            except AttemptOverError:
                self._shutdown.resume()
            except Exception as error:
                if drained is None or isinstance(error, FencedError):
                    raise
                failure = error
                attempt.fail(error)
                self._shutdown.resume()
            else:
                return pinned.manifest

    def _attempt(self, before: Attempt | None = None) -> Attempt:
        """The attempt that runs, another one than `before`; waits while the job restarts."""
        while not self._ended.is_set():
            attempt = self._job.attempt
            if attempt is not None and attempt is not before and _can_checkpoint(attempt):
                return attempt
            self._ended.wait(_WAIT_S)
        raise CheckpointError(f"job {self._name!r} has ended")

    def _checkpoint(self, attempt: Attempt) -> PinnedCheckpoint:
        try:
            return attempt.hold("savepoint").result()
        except TurnbackError as e:
            if isinstance(e, FencedError) or _can_checkpoint(attempt):
                raise
            raise AttemptOverError from e

    def _answer(self, request: Request, outcome: RequestOutcome) -> bool:
        """Write a result; returns whether there is one now, or it is for others to write it."""
        try:
            self._requests.finish(request.id, outcome)
            self._answers += 1
        except FencedError as e:
            _LOG.warning("another driver serves request %s: %s", request.id, e)
        except StorageError as e:
            _LOG.warning("cannot answer request %s: %s", request.id, e)
            return False
        return True


def _can_checkpoint(attempt: Attempt) -> bool:
    """Whether checkpoints of an attempt can be taken, and it is not about to fail."""
    return attempt.is_running and attempt.coordinator.failure is None
