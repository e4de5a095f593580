from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql import SparkSession

from turnback.coordinator import (
    JobDirectory,
    Manifest,
    Request,
    RequestKind,
    RequestOrigin,
    Requests,
    RequestState,
    SavepointSettings,
)
from turnback.core import Clock
from turnback.core.errors import (
    CheckpointError,
    FencedError,
    JobFailedError,
    StorageError,
    TurnbackError,
)
from turnback.runtime.spark.attempt import Attempt
from turnback.runtime.spark.java import lost_jvm
from turnback.runtime.spark.savepoints import Savepoints
from turnback.runtime.storageref import StorageRef
from turnback.savepoint import Origin

_LOG = logging.getLogger(__name__)
_POLL_S = 1.0
_WAIT_S = 0.1
_KEPT_REQUESTS = 100


class Job(Protocol):
    """What the service needs of the job it serves."""

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that is running, `None` between two of them."""

    @property
    def origin(self) -> Origin | None:
        """What the job was started from, if it was from another snapshot."""

    def cancel(self) -> None:
        """End the job."""


class Service:
    """Serves what users ask of a running job: savepoints, to stop, to cancel.

    Requests come as files in the job directory, so anybody who can write there can ask. It lives
    as long as the driver, over all its attempts. One savepoint is written at a time; a plain
    cancel waits for none.

    Args:
        spark: The session.
        directory: The job directory.
        storage: The same, for tasks.
        settings: Where savepoints go, and when they are taken by themselves.
        job: The job.
        clock: Where time comes from.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: JobDirectory,
        storage: StorageRef,
        settings: SavepointSettings,
        job: Job,
        clock: Clock,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._job = job
        self._clock = clock
        self._name = directory.name
        self._requests = Requests(directory.storage, clock)
        self._own: set[str] = set()
        self._savepoints = Savepoints(spark, directory, storage, settings, self._requests, clock)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._poked = threading.Event()
        self._busy: tuple[Request, threading.Thread] | None = None
        self._thread = threading.Thread(target=self._run, name="turnback-service", daemon=True)
        self._last_scheduled: int | None = None

    def start(self, created_ms: int, *, resumed: bool = False) -> None:
        """Begin to serve.

        Args:
            created_ms: When the job was created; a schedule counts from then.
            resumed: Whether a supervisor has started the driver again: then what was asked of the
                one that died still holds.
        """
        if not resumed:
            with self._lock:
                self._settle_leftovers()
        if self._settings.schedule is not None:
            # A last time in the future, by a clock that was wrong, must not switch it off.
            last = self._savepoints.last_scheduled(created_ms)
            self._last_scheduled = min(last, self._clock.now_ms())
        self._thread.start()

    def submit(self, kind: RequestKind, **what: Any) -> Request:
        """Ask for something from within this process; see `Requests.submit`."""
        with self._lock:  # or it is taken for a leftover in between
            request = self._requests.submit(kind, **what)
            self._own.add(request.id)
        self._poked.set()
        return request

    def save_before_upgrade(self, manifest: Manifest) -> None:
        """Keep what a changed program is about to start from, unless the user declines.

        Args:
            manifest: The job's own checkpoint; nothing deletes its files yet.
        """
        if self._settings.directory is None or not self._settings.on_stop:
            return
        with self._lock:
            request = self._requests.submit(
                RequestKind.SAVEPOINT, type=self._settings.format, label="before an upgrade"
            )
            self._busy = (request, threading.current_thread())
        try:
            entry = self._savepoints.take(request, manifest, self._job.origin)
        except TurnbackError as e:
            self._fail(request, str(e))
            raise
        finally:
            self._busy = None
        self._answer(request, RequestState.COMPLETED, path=entry.path, checkpoint=entry.checkpoint)

    def answer(self, request: Request, is_over: Callable[[], bool]) -> str | None:
        """Wait for the end of a request.

        Args:
            request: From `submit`.
            is_over: Whether the job has ended.

        Returns:
            The directory of the savepoint, if one was asked for.

        Raises:
            JobFailedError: The job ended without an answer.
            CheckpointError: It failed.
        """
        while True:
            over = is_over()
            result = self._requests.wait(request.id, 0.5)
            if result is not None and result.state is RequestState.FAILED:
                what = f"job {self._name!r}: {request.kind.value} failed"
                raise CheckpointError(f"{what}: {result.error}")
            if result is not None:
                return result.path
            if over:
                raise JobFailedError(f"job {self._name!r} ended before it answered")

    def close(self, *, give_up: bool, leave_open: bool = False) -> None:
        """The driver ends: answer what is still open.

        Args:
            give_up: Do not wait for a savepoint that is being written.
            leave_open: The job goes on in another driver, which answers.
        """
        self._ended.set()
        self._poked.set()
        if give_up:
            self._savepoints.give_up()
        self._thread.join()
        if self._busy is not None:
            self._busy[1].join()
        if leave_open:
            return
        try:
            for request in self._requests.open():
                self._fail(request, "the job has ended")
            self._requests.prune(_KEPT_REQUESTS)
        except StorageError as e:
            _LOG.warning("job %r: requests are left without an answer: %s", self._name, e)

    # -- the loop

    def _run(self) -> None:
        while not self._ended.is_set():
            self._poked.wait(_POLL_S)
            self._poked.clear()
            try:
                self._submit_scheduled()
                with self._lock:
                    self._poll()
            except Exception as e:  # noqa: BLE001 - a dead thread would serve nobody any more
                _LOG.warning("job %r: requests are not served, trying again: %s", self._name, e)

    def _poll(self) -> None:
        if self._busy is not None and not self._busy[1].is_alive():
            self._busy = None
        for request in self._requests.open():
            if self._busy is not None and self._busy[0].id == request.id:
                continue
            if request.kind is RequestKind.CANCEL and not request.savepoint:
                self._job.cancel()
                self._requests.finish(request.id, RequestState.COMPLETED)
            elif self._busy is None:
                thread = threading.Thread(
                    target=self._serve, args=(request,), name="turnback-savepoint", daemon=True
                )
                self._busy = (request, thread)
                thread.start()

    def _submit_scheduled(self) -> None:
        schedule, last = self._settings.schedule, self._last_scheduled
        now = self._clock.now_ms()
        if schedule is None or last is None or not schedule.due(last, now):
            return
        self._last_scheduled = now
        self._requests.submit(
            RequestKind.SAVEPOINT, type=self._settings.format, origin=RequestOrigin.SCHEDULE
        )

    def _settle_leftovers(self) -> None:
        """Answer what a driver that died has left: its job has ended, and starts again now."""
        for request in self._requests.open():
            if request.id in self._own:
                continue
            if request.kind is RequestKind.CANCEL and not request.savepoint:
                self._requests.finish(request.id, RequestState.COMPLETED)
            elif request.kind is not RequestKind.SAVEPOINT:
                self._fail(request, "the driver died before it could; the job was started again")

    # -- one request

    def _serve(self, request: Request) -> None:
        try:
            path, checkpoint = self._fulfil(request)
        except FencedError as e:  # whoever has taken over answers
            _LOG.warning("job %r: %s request left alone: %s", self._name, request.kind.value, e)
        except Exception as e:  # noqa: BLE001 - whatever it is, the user has to hear of it
            fate = lost_jvm(self._spark)
            if fate is None:
                self._fail(request, _told(e))
            else:  # this driver ends, and the next one answers
                kind = request.kind.value
                _LOG.warning("job %r: %s request is left open: %s", self._name, kind, fate)
        else:
            self._answer(request, RequestState.COMPLETED, path=path, checkpoint=checkpoint)
        self._poked.set()  # the next one may be waiting

    def _fulfil(self, request: Request) -> tuple[str | None, int | None]:
        stopping = request.kind is RequestKind.STOP
        while True:
            attempt = self._attempt()
            try:
                if stopping:
                    attempt.pause()
                try:
                    done = self._take(request, attempt)
                    if stopping:
                        attempt.finish()
                finally:
                    if stopping:
                        attempt.resume()
                break
            except _AttemptOverError:
                continue
        if request.kind is RequestKind.CANCEL:
            self._job.cancel()
        return done

    def _attempt(self) -> Attempt:
        """The attempt that runs; waits while the job restarts."""
        while not self._ended.is_set():
            attempt = self._job.attempt
            if attempt is not None and attempt.is_running:
                return attempt
            self._ended.wait(_WAIT_S)
        raise CheckpointError(f"job {self._name!r} has ended")

    def _take(self, request: Request, attempt: Attempt) -> tuple[str | None, int | None]:
        try:
            held = attempt.hold("savepoint").result()
        except FencedError:
            raise
        except CheckpointError as e:
            if attempt.is_running:
                raise
            raise _AttemptOverError from e
        with held:
            if not request.takes_savepoint:
                return None, held.checkpoint.number
            entry = self._savepoints.take(request, held.checkpoint.manifest, self._job.origin)
        return entry.path, entry.checkpoint

    def _fail(self, request: Request, why: str) -> None:
        _LOG.warning("job %r: %s request failed: %s", self._name, request.kind.value, why)
        self._answer(request, RequestState.FAILED, error=why)

    def _answer(
        self,
        request: Request,
        state: RequestState,
        *,
        path: str | None = None,
        checkpoint: int | None = None,
        error: str | None = None,
    ) -> None:
        try:
            self._requests.finish(request.id, state, path=path, checkpoint=checkpoint, error=error)
        except StorageError as e:
            _LOG.warning("request %s could not be answered: %s", request.id, e)


class _AttemptOverError(Exception):
    """The attempt ended before its checkpoint was taken; the next one can take it."""


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, TurnbackError) else f"{type(error).__name__}: {error}"
