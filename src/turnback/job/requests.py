"""Requests to the driver of a job, as files that survive it.

ops/<id>.json               the request; written once
ops/<id>.progress.json      how far it has got; rewritten
ops/<id>.decision-<n>.json  it ends the job at checkpoint <n>
ops/<id>.result.json        how it ended; written once, the first writer wins
newest-request              the id of one of the newest requests; rewritten with each
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from turnback.core.clock import Clock, SystemClock
from turnback.core.ids import check_id, is_id
from turnback.errors import (
    AlreadyExistsError,
    CorruptFileError,
    FormatVersionError,
    NotFoundError,
    StorageError,
)
from turnback.job.catalog import SavepointCatalog
from turnback.job.request import (
    Request,
    RequestKind,
    RequestOutcome,
    RequestProgress,
    RequestResult,
    RequestSpec,
    StopPoint,
    check_label,
    outcome_of_ended_job,
    outcome_of_lost_driver,
)
from turnback.job.status import JobState
from turnback.storage.base import Storage, put_if_absent_or_same
from turnback.storage.envelope import encode_document, read_document

_LOG = logging.getLogger(__name__)
DIRECTORY = "ops"
NEWEST = "newest-request"
FORMAT = 1
_REQUEST = "request"
_RESULT = "request-result"
_PROGRESS = "request-progress"
_STOP_POINT = "request-decision"
_SUFFIX = {_REQUEST: "", _RESULT: ".result", _PROGRESS: ".progress"}
_KIND_OF_SUFFIX = {suffix: kind for kind, suffix in _SUFFIX.items()}
_FILE = re.compile(rf"{DIRECTORY}/([^/.]+)(\.result|\.progress|\.decision-[1-9][0-9]*)?\.json")
_MAX_MS = 10**13 - 1
_FIRST_POLL_S = 0.1
_LAST_POLL_S = 1.0
_LIST_S = 20.0
"""How often a driver lists requests although nothing says that there is a new one."""

T = TypeVar("T")


class Requests:
    """The requests of one job, for users and for the driver. Thread-safe.

    A driver gives `own_attempt`, which is called after a request was read and before its result is
    written: it returns the driver's attempt, or raises `FencedError` if it was replaced.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock | None = None,
        own_attempt: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._storage = storage
        self._clock = clock or SystemClock()
        self._own_attempt = own_attempt
        self._lock = threading.Lock()
        self._last_ms = -1
        self._ended = 0
        self._finished: dict[str, int] = {}
        self._warned: set[str] = set()
        self._listed_s: float | None = None
        self._newest = b""
        self._has_open = True

    # -- for users

    def submit(self, spec: RequestSpec) -> Request:
        check_label(spec.label)
        while True:
            request = Request(
                id=self._new_id(), created_ms=self._clock.now_ms(), **msgspec.structs.asdict(spec)
            )
            try:
                put_if_absent_or_same(
                    self._storage, _path(_REQUEST, request.id), _sealed(_REQUEST, request)
                )
            except AlreadyExistsError:
                continue
            try:
                self._storage.put(NEWEST, request.id.encode())
            except StorageError as error:  # the request is there, and found a little later
                _LOG.warning("cannot tell the driver of request %s at once: %s", request.id, error)
            return request

    def ids(self) -> list[str]:
        """Return the ids of all requests that are remembered, ended or not, in their order."""
        files = self._files()
        return sorted({*files[_REQUEST], *files[_RESULT]})

    def get(self, id_: str) -> Request | None:
        return self._read(_REQUEST, id_, Request)

    def result(self, id_: str) -> RequestResult | None:
        return self._read(_RESULT, id_, RequestResult)

    def progress(self, id_: str) -> RequestProgress | None:
        """Return how far a request has got, `None` if that is not known."""
        try:
            return self._read(_PROGRESS, id_, RequestProgress)
        except (CorruptFileError, FormatVersionError) as error:
            self._warn_once(f"cannot read the progress: {error}")
            return None

    def wait(self, id_: str, timeout_s: float | None = None) -> RequestResult | None:
        """Wait until a request has ended; return how, `None` if the time is over.

        Raises `NotFoundError` if there is none, or it ended long ago and is forgotten.
        """
        began = self._clock.monotonic()
        pause = _FIRST_POLL_S
        while True:
            result = self.result(id_)
            if result is not None:
                return result
            self._require(id_)
            left = pause
            if timeout_s is not None:
                left = timeout_s - (self._clock.monotonic() - began)
                if left <= 0:
                    return None
            self._clock.sleep(min(pause, left))
            pause = min(pause * 1.5, _LAST_POLL_S)

    # -- for the driver

    def open_if_new(self) -> list[Request]:
        """Return what `open` does, but nothing if nothing can have changed since the last call.

        To be called often: an object store charges twelve times as much for a listing as for
        reading the name of the newest request. Everything is listed now and then nevertheless, in
        case a submitter could not write that.
        """
        now = self._clock.monotonic()
        newest = self._newest_request()
        is_due = self._listed_s is None or now - self._listed_s >= _LIST_S
        is_new = newest is None or newest != self._newest
        if not (is_due or self._has_open or is_new):
            return []
        self._has_open = True  # until a listing has shown that there is none
        unanswered = self._unanswered()
        requests = self._open_requests(unanswered)
        self._has_open = bool(unanswered)
        self._listed_s = now
        if newest is not None:
            self._newest = newest
        return requests

    def open(self) -> list[Request]:
        """Return the requests without a result, in order of submission; for the driver only.

        A request that can never be served (damaged, of a newer format) gets a failed result here;
        one that cannot be read right now is left for the next time. Neither stands in the way of
        the others.
        """
        # What `open_if_new` knows stays as it is: it may have listed later, in another thread.
        return self._open_requests(self._unanswered())

    def report(self, id_: str, progress: RequestProgress) -> None:
        """Write down how far a request has got; if the storage refuses, that is left out."""
        try:
            self._storage.put(_path(_PROGRESS, id_), _sealed(_PROGRESS, progress))
        except StorageError as error:
            _LOG.warning("cannot write the progress of request %s: %s", id_, error)

    def finish(self, id_: str, outcome: RequestOutcome) -> RequestResult:
        """End a request, unless it has ended already; return the one result there is.

        If this driver was replaced, whoever has done that answers: `FencedError`. After a
        `CommitStateUnknownError` finish again.
        """
        path = _path(_RESULT, id_)
        mine = RequestResult(
            id=id_,
            ended_ms=self._clock.now_ms(),
            attempt=self._own_attempt(),
            **msgspec.structs.asdict(outcome),
        )
        try:
            put_if_absent_or_same(self._storage, path, _sealed(_RESULT, mine))
        except AlreadyExistsError:
            there = self.result(id_)
            if there is None:  # forgotten meanwhile, so it had ended
                return mine
            _LOG.info("request %s has already ended as %s", id_, there.state)
            return there
        with self._lock:
            self._ended += 1
            self._finished[id_] = self._ended
        return mine

    def answer_ended(self, catalog: SavepointCatalog, job: JobState | None) -> None:
        """Answer every open request of a job that has ended; `job` is how, if that is known."""
        for request in self.open():
            if job is None:
                self.finish(request.id, RequestOutcome.failed("the job has ended"))
            else:
                self.finish(request.id, outcome_of_ended_job(request, job, catalog))

    def answer_leftovers(
        self, catalog: SavepointCatalog, job: JobState | None, own: frozenset[str]
    ) -> None:
        """Answer the requests to a driver that has died, as the user starts the job again.

        A stop or cancel is not obeyed: whoever starts the job wants it to run. Savepoints are left
        to be taken by the new driver, whose `own` requests are left alone. `job` is how the job had
        ended; `None` if it had not, because its driver died.
        """
        for request in self.open():
            if request.id in own or request.kind is RequestKind.SAVEPOINT:
                continue
            if job is None:
                self.finish(request.id, outcome_of_lost_driver(request, catalog))
            else:
                self.finish(request.id, outcome_of_ended_job(request, job, catalog))

    def record_stop_point(self, point: StopPoint) -> None:
        """Record at which checkpoint a request ends the job; durable on return.

        There may be several for a request: one that comes late, from a driver that was replaced,
        has a name of its own, overwrites nothing, and names a checkpoint that is not the newest
        any more.
        """
        path = _stop_point_path(point.id, point.checkpoint)
        self._storage.put(path, _sealed(_STOP_POINT, point))

    def stop_point(self, id_: str, checkpoint: int, epoch: int) -> StopPoint | None:
        """Return where a request without result ends the job, `None` if that is not decided.

        `checkpoint` and `epoch` are those of the newest checkpoint of the job.
        """
        path = _stop_point_path(id_, checkpoint)
        point = read_document(self._storage, _STOP_POINT, FORMAT, path, StopPoint)
        return point if point is not None and (point.id, point.epoch) == (id_, epoch) else None

    def prune(self, keep: int) -> None:
        """Forget requests that have ended, all but the newest `keep`.

        The result goes last: a request without one would be served again. Those this object has
        ended are newer than all others, whatever the clocks.
        """
        files = self._files()
        requests = set(files[_REQUEST])
        ended = set(files[_RESULT])
        surplus = len(ended) - max(keep, 0)
        old = sorted(ended, key=self._age)[:surplus] if surplus > 0 else []
        for id_, paths in files[_STOP_POINT].items():
            for path in paths if id_ in old or id_ not in requests | ended else ():
                self._storage.delete(path)
        for id_ in set(files[_PROGRESS]) - requests - ended:
            self._storage.delete(_path(_PROGRESS, id_))
        for id_ in old:
            for kind in (_PROGRESS, _REQUEST, _RESULT):
                self._storage.delete(_path(kind, id_))
            with self._lock:
                self._finished.pop(id_, None)

    # -- internals

    def _new_id(self) -> str:
        with self._lock:
            # One submitter's requests keep their order, also when its clock stands or goes back.
            now = min(max(self._clock.now_ms(), 0), _MAX_MS)
            self._last_ms = min(max(now, self._last_ms + 1), _MAX_MS)
            return f"{self._last_ms:013d}-{secrets.token_hex(6)}"

    def _unanswered(self) -> list[str]:
        """The ids of the requests without a result, in order of submission."""
        files = self._files()
        return sorted(set(files[_REQUEST]) - set(files[_RESULT]))

    def _open_requests(self, unanswered: Iterable[str]) -> list[Request]:
        requests: list[Request] = []
        for id_ in unanswered:
            try:
                request = self._open_request(id_)
            except (CorruptFileError, FormatVersionError) as error:
                self._refuse(id_, error)
            except StorageError as error:
                self._warn_once(f"cannot read request {id_}, retrying later: {error}")
            else:
                if request is not None:
                    requests.append(request)
        return requests

    def _open_request(self, id_: str) -> Request | None:
        # In this order: a request that is forgotten meanwhile loses its result last.
        if self._exists(_RESULT, id_):
            return None
        request = self._read(_REQUEST, id_, Request)
        if request is not None and request.id != id_:
            name = f"{self._storage.uri}/{_path(_REQUEST, id_)}"
            raise CorruptFileError(
                f"{name} contains request {request.id}: it was copied or renamed"
            )
        return request

    def _refuse(self, id_: str, error: StorageError) -> None:
        _LOG.error("cannot serve request %s: %s", id_, error)
        try:
            self.finish(id_, RequestOutcome.failed(f"{error}. Submit the request again"))
        except StorageError as again:
            self._warn_once(f"cannot refuse request {id_}, retrying later: {again}")

    def _require(self, id_: str) -> None:
        if not self._exists(_REQUEST, id_) and not self._exists(_RESULT, id_):
            raise NotFoundError(
                f"there is no request {id_} in {self._storage.uri}: it was never submitted to "
                "this job, or it ended long ago and has been deleted"
            )

    def _age(self, id_: str) -> tuple[int, int, str]:
        with self._lock:
            order = self._finished.get(id_)
        if order is not None:
            return order, 0, id_
        try:
            result = self.result(id_)
        except (CorruptFileError, FormatVersionError):
            result = None
        return -1, result.ended_ms if result is not None else -1, id_

    def _files(self) -> dict[str, dict[str, list[str]]]:
        """The paths of all files, by their kind and the id of the request."""
        files: dict[str, dict[str, list[str]]] = {kind: {} for kind in (*_SUFFIX, _STOP_POINT)}
        for path in self._storage.list(DIRECTORY):
            match = _FILE.fullmatch(path)
            if match is not None and is_id(match[1]):
                kind = _KIND_OF_SUFFIX.get(match[2] or "", _STOP_POINT)
                files[kind].setdefault(match[1], []).append(path)
            else:
                self._warn_once(f"{self._storage.uri}/{path} is not a request and is ignored")
        return files

    def _newest_request(self) -> bytes | None:
        """What the newest submitter has written; None if it cannot be read.

        It may belong to another user, whose mistake must not keep all others from being heard.
        """
        try:
            return self._storage.get(NEWEST)
        except NotFoundError:
            return b""
        except StorageError as error:
            self._warn_once(f"cannot read the name of the newest request: {error}")
            return None

    def _exists(self, kind: str, id_: str) -> bool:
        try:
            self._storage.get(_path(kind, id_))
        except NotFoundError:
            return False
        return True

    def _read(self, kind: str, id_: str, type_: type[T]) -> T | None:
        return read_document(self._storage, kind, FORMAT, _path(kind, id_), type_)

    def _warn_once(self, message: str) -> None:
        with self._lock:
            if message in self._warned or len(self._warned) > 1_000:
                return
            self._warned.add(message)
        _LOG.warning("%s", message)


def _path(kind: str, id_: str) -> str:
    return f"{DIRECTORY}/{check_id(id_, 'request')}{_SUFFIX[kind]}.json"


def _stop_point_path(id_: str, checkpoint: int) -> str:
    return f"{DIRECTORY}/{check_id(id_, 'request')}.decision-{checkpoint}.json"


def _sealed(kind: str, document: Request | RequestResult | RequestProgress | StopPoint) -> bytes:
    return encode_document(kind, FORMAT, document)
