"""How many records a job has processed lately and long ago, in a file of bounded size.

A driver counts in buckets of ten seconds. Older buckets are added up to wider ones, and those older
than a week are dropped, so the file never holds more than some 1,500 of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from turnback.core.clock import Clock
from turnback.errors import StorageError
from turnback.storage.base import Storage
from turnback.storage.envelope import encode_document, read_document

_LOG = logging.getLogger(__name__)
FILE = "throughput.json"
_KIND = "throughput"
_FORMAT = 1
_MINUTE_MS = 60_000
_DAY_MS = 86_400_000
_WIDTH_MS = 10_000
WIDTHS = (
    (30 * _MINUTE_MS, _WIDTH_MS),
    (360 * _MINUTE_MS, _MINUTE_MS),
    (7 * _DAY_MS, 10 * _MINUTE_MS),
)
"""Up to which age buckets have which width."""
_WRITE_S = 10.0
_SHORTEST_MS = 1_000
"""What ran for a shorter time counts as if it had taken this long."""


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """What a job did in some seconds or minutes.

    Attributes:
        start_ms: When it begins, by the driver's clock.
        span_ms: For how much of it the job ran.
        records_in: Elements that the sources gave.
        records_out: Elements that the sinks were given.
        lag: Records that the sources had not processed at its end; None if that was not known.
    """

    start_ms: int
    span_ms: int
    records_in: float = 0
    records_out: float = 0
    lag: int | None = None


class Throughput(msgspec.Struct, frozen=True):
    """The buckets of a job, oldest first; without those in which it did not run."""

    job_id: str
    buckets: tuple[Bucket, ...] = ()


def read_throughput(storage: Storage, job_id: str) -> tuple[Bucket, ...]:
    """Return what the drivers of a job have counted; nothing if the file is of an earlier job."""
    written = read_document(storage, _KIND, _FORMAT, FILE, Throughput)
    return written.buckets if written is not None and written.job_id == job_id else ()


def condense(buckets: Iterable[Bucket], now_ms: int, least_ms: int = 0) -> list[Bucket]:
    """Add up old buckets, drop very old ones and those of a clock that was ahead.

    `least_ms` is how wide they are at least; each begins at a multiple of its width.
    """
    condensed: dict[int, Bucket] = {}
    for bucket in sorted(buckets, key=lambda each: each.start_ms):
        width = width_at(now_ms - bucket.start_ms)
        if not width:
            continue
        width = max(width, least_ms)
        start = bucket.start_ms - bucket.start_ms % width
        before = condensed.get(start)
        if before is None:
            same = start == bucket.start_ms
            condensed[start] = bucket if same else msgspec.structs.replace(bucket, start_ms=start)
            continue
        condensed[start] = Bucket(
            start,
            min(before.span_ms + bucket.span_ms, width),
            round(before.records_in + bucket.records_in, 2),
            round(before.records_out + bucket.records_out, 2),
            bucket.lag if bucket.lag is not None else before.lag,
        )
    return list(condensed.values())


def width_at(age_ms: int) -> int:
    """How wide a bucket of some age is; 0 if there is none of this age."""
    if age_ms < 0:
        return 0
    return next((width for oldest, width in WIDTHS if age_ms < oldest), 0)


@dataclass
class _Counted:
    """A bucket that is not full yet, and the first and last time at which the job ran in it."""

    first_ms: int
    last_ms: int
    records_in: float = 0.0
    records_out: float = 0.0
    lag: int | None = None


class ThroughputLog:
    """Counts what a driver processes, and writes it now and then. Thread-safe.

    Losing some of it never fails the job.
    """

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._job_id = ""
        self._old: list[Bucket] = []
        """Buckets that do not change any more."""
        self._new: dict[int, _Counted] = {}
        """What is counted since the last file, by start of the bucket."""
        self._newest: int | None = None
        """The start of the newest bucket that this driver has written."""
        self._written = clock.monotonic()

    def begin(self, job_id: str) -> None:
        """Go on with what earlier drivers of the job have counted."""
        self._job_id = job_id
        try:
            self._old = list(read_throughput(self._storage, job_id))
        except StorageError as error:
            _LOG.warning("cannot read the throughput of the job: %s", error)

    def count(self, records_in: int, records_out: int, seconds: float) -> None:
        """Count an epoch that has ended now, as if it had done as much in each of its seconds."""
        end = self._clock.now_ms()
        start = end - max(round(seconds * 1000), 1)
        with self._lock:
            at = start
            while at < end:
                bucket = at - at % _WIDTH_MS
                until = min(bucket + _WIDTH_MS, end)
                share = (until - at) / (end - start)
                counted = self._bucket(at, until)
                counted.records_in += records_in * share
                counted.records_out += records_out * share
                at = until

    def tick(self, lag: int | None, epoch_s: float = 0.0) -> None:
        """Note that the job runs, and write what was counted unless that was done a moment ago.

        Called every few seconds. `epoch_s` is for how long an epoch has been running that is not
        counted yet: what it overlaps is not written.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            current = self._bucket(now_ms, now_ms)
            current.lag = lag if lag is not None else current.lag
        if self._clock.monotonic() - self._written >= _WRITE_S:
            self.write(now_ms - round(epoch_s * 1000))

    def write(self, until_ms: int | None = None) -> None:
        """Write the buckets that have ended by then; all if no time is given."""
        now_ms = self._clock.now_ms()
        with self._lock:
            self._written = self._clock.monotonic()
            ended = [
                start
                for start in sorted(self._new)
                if until_ms is None or start + _WIDTH_MS <= until_ms
            ]
            fresh = [self._full(start) for start in ended]
            for start in ended:
                del self._new[start]
            self._newest = max(ended, default=self._newest)
            self._old = condense([*self._old, *fresh], now_ms)
            document = Throughput(self._job_id, tuple(self._old))
        try:
            self._storage.put(FILE, encode_document(_KIND, _FORMAT, document))
        except StorageError as error:
            _LOG.warning("cannot write the throughput of the job: %s", error)

    def _bucket(self, first_ms: int, last_ms: int) -> _Counted:
        """The bucket of some time in which the job runs."""
        start = first_ms - first_ms % _WIDTH_MS
        counted = self._new.setdefault(start, _Counted(first_ms, last_ms))
        counted.first_ms = min(counted.first_ms, first_ms)
        counted.last_ms = max(counted.last_ms, last_ms)
        return counted

    def _full(self, start: int) -> Bucket:
        """A bucket as it is written; it is whole if the job ran before and after it."""
        counted = self._new[start]
        end = start + _WIDTH_MS
        ran_before = start - _WIDTH_MS in self._new or start - _WIDTH_MS == self._newest
        first = start if ran_before else counted.first_ms
        last = end if end in self._new else counted.last_ms
        return Bucket(
            start,
            max(last - first, _SHORTEST_MS),
            round(counted.records_in, 2),
            round(counted.records_out, 2),
            counted.lag,
        )
