"""What is asked of Kinesis, and what its answers mean for a source."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, islice, takewhile
from typing import Any, NamedTuple, TypeVar

from turnback.core.extras import require
from turnback.errors import ConfigurationError, SourceError, TurnbackError

_T = TypeVar("_T")
Place = tuple[str, Any]
"""A kind of shard iterator, and the sequence number or the time in milliseconds that it needs."""
EARLIEST: Place = ("TRIM_HORIZON", None)
PATIENCE_S = 60.0
"""How long a task asks again that Kinesis has told to wait."""
_LARGEST_PAGE = 10_000
_LOGIN = (
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "MissingAuthenticationTokenException",
    "ExpiredTokenException",
)
_BUSY = ("ProvisionedThroughputExceededException", "LimitExceededException", "ThrottlingException")


class Throttled(Exception):
    """Kinesis has told to wait."""


class IteratorExpired(Exception):
    """A shard iterator is older than five minutes."""


class KinesisRecord(NamedTuple):
    """A record; `arrived` is in milliseconds since 1970."""

    sequence_number: str
    data: bytes
    partition_key: str
    arrived: int


@dataclass(frozen=True)
class Page:
    """An answer to the question for records; `following` is None if the shard has ended."""

    records: list[KinesisRecord]
    following: str | None
    behind_ms: int


class Shard(NamedTuple):
    """A shard, with those that it was made of."""

    id: str
    parents: tuple[str, ...]


class KinesisClient:
    """Asks Kinesis about one stream; may be used by several threads.

    `name` is who asks, for messages: "source 'likes' of job 'likes'".
    """

    def __init__(self, options: Mapping[str, str], name: str) -> None:
        boto3 = require("boto3", "kinesis", "KinesisSource")
        self.stream = options["stream"]
        self._name = name
        keys = ("region_name", "endpoint_url", "aws_access_key_id", "aws_secret_access_key")
        given = {key: options[key] for key in (*keys, "aws_session_token") if key in options}
        self._where = given.get("endpoint_url", "AWS")
        self._aws: Any = self._ask(lambda: boto3.client("kinesis", config=_config(), **given))

    def retention_ms(self) -> int:
        """How long records are kept; `ConfigurationError` if there is no such stream."""
        found = self._ask(lambda: self._aws.describe_stream_summary(StreamName=self.stream))
        hours: int = found["StreamDescriptionSummary"]["RetentionPeriodHours"]
        return hours * 3_600_000

    def shards(self) -> list[Shard]:
        """All shards whose records are not all gone, closed ones too."""
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {"StreamName": self.stream}
        while more:
            answer = self._ask(partial(self._aws.list_shards, **more))
            found += answer["Shards"]
            more = {"NextToken": answer["NextToken"]} if answer.get("NextToken") else {}
        parents = ("ParentShardId", "AdjacentParentShardId")
        return [Shard(s["ShardId"], tuple(s[p] for p in parents if s.get(p))) for s in found]

    def iterator(self, shard: str, place: Place) -> str:
        """What to ask with for the records from a place on."""
        kind, value = place
        given: dict[str, Any] = {}
        if kind == "AT_TIMESTAMP":
            given["Timestamp"] = datetime.fromtimestamp(value / 1000, UTC)
        elif kind != "TRIM_HORIZON":
            given["StartingSequenceNumber"] = value
        answer = self._ask(
            lambda: self._aws.get_shard_iterator(
                StreamName=self.stream, ShardId=shard, ShardIteratorType=kind, **given
            )
        )
        found: str = answer["ShardIterator"]
        return found

    def page(self, iterator: str, most: int = _LARGEST_PAGE) -> Page:
        """The next records; none does not mean that there are no more.

        Raises:
            Throttled: It was asked too often, or for too much.
            IteratorExpired: Make another iterator.
        """
        most = min(most, _LARGEST_PAGE)
        answer = self._ask(lambda: self._aws.get_records(ShardIterator=iterator, Limit=most))
        records = [
            KinesisRecord(
                each["SequenceNumber"],
                each["Data"],
                each["PartitionKey"],
                int(each["ApproximateArrivalTimestamp"].timestamp() * 1000),
            )
            for each in answer["Records"]
        ]
        following = answer.get("NextShardIterator") or None
        return Page(records, following, answer.get("MillisBehindLatest") or 0)

    def first(self, shard: str, place: Place) -> KinesisRecord | None:
        """The first record from a place on, None if there is none."""
        iterator: str | None = self.retry_while(self.iterator, shard, place)
        while iterator is not None:
            page = self.retry_while(self.page, iterator, 1)
            if page.records:
                return page.records[0]
            if page.behind_ms == 0:
                return None
            iterator = page.following
        return None

    def retry_while(self, question: Callable[..., _T], *args: Any) -> _T:
        """Ask again, later and later, as long as Kinesis says to wait."""
        pause = 0.2
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return question(*args)
            except Throttled:
                if time.monotonic() > end:
                    raise SourceError(
                        f"{self._name}: Kinesis has throttled reads of stream {self.stream!r} "
                        f"for {PATIENCE_S:g} s. Add shards, or let fewer programs read it"
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    def _ask(self, question: Callable[[], Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return question()
        except ClientError as error:
            raise self._refused(error.response.get("Error", {})) from None
        except BotoCoreError as error:
            raise self._failed(error) from None

    def _refused(self, error: Mapping[str, str]) -> Exception:
        code = error.get("Code", "")
        text = error.get("Message", "")
        if code in _BUSY:
            return Throttled(text)
        if code == "ExpiredIteratorException":
            return IteratorExpired(text)
        if code == "ResourceNotFoundException":
            return ConfigurationError(
                f"{self._name}: cannot find stream {self.stream!r} at {self._where}: {text}. "
                "Create it first, or check its name, the region and the account"
            )
        if code in _LOGIN:
            return ConfigurationError(
                f"{self._name}: {self._where} rejected the login: {text} ({code}). Check "
                "set_credentials, or the credentials in the environment of boto3"
            )
        if code.startswith("AccessDenied"):
            return ConfigurationError(
                f"{self._name}: {self._where} denied access to stream {self.stream!r}: {text}. "
                "Required permissions: kinesis:DescribeStreamSummary, kinesis:ListShards, "
                "kinesis:GetShardIterator and kinesis:GetRecords"
            )
        return SourceError(f"{self._name}: Kinesis, stream {self.stream!r}: {code}: {text}")

    def _failed(self, error: Exception) -> TurnbackError:
        kind = type(error).__name__
        if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
            return ConfigurationError(
                f"{self._name}: no credentials for Kinesis: {error}. Call set_credentials, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role, where drivers and tasks "
                "run"
            )
        if kind in ("NoRegionError", "InvalidRegionError"):
            return ConfigurationError(
                f"{self._name}: no region for Kinesis: {error}. Call set_region, or set "
                "AWS_DEFAULT_REGION"
            )
        return SourceError(
            f"{self._name}: Kinesis at {self._where} does not respond for stream "
            f"{self.stream!r}: {error}"
        )


def _config() -> Any:
    from botocore.config import Config

    return Config(
        retries={"total_max_attempts": 3, "mode": "standard"},
        connect_timeout=5,
        read_timeout=20,
        max_pool_connections=32,
    )


MOST_BYTES = 16 << 20
"""Of what an epoch reads of one shard: it travels in the description of a task."""
_PAUSE_S = 0.25
"""Between two questions for records of a shard that has none: Kinesis allows five in a second."""
_LONGEST_PAUSE_S = 5.0
ShardPosition = dict[str, Any]


def new_shards(
    known: Mapping[str, ShardPosition], listed: Iterable[Shard], start: Place, now_ms: int
) -> dict[str, ShardPosition]:
    """The shards to begin with now: those of which all parents were read to their ends.

    So whatever has one partition key is read in order across splits and merges. A parent that
    Kinesis does not list any more has no records left.
    """
    shards = {shard.id: shard for shard in listed}
    begin = {}
    for shard in shards.values():
        waits_for = [p for p in shard.parents if p in shards and not is_ended(known.get(p))]
        if shard.id not in known and not waits_for:
            begin[shard.id] = {"at": list(start), "count": 0, "seen": now_ms}
    return begin


def is_ended(position: ShardPosition | None) -> bool:
    """Whether all of a shard was read, and nothing will be added to it."""
    return position is not None and bool(position.get("ended"))


class ReadAhead:
    """Records of a shard that were read and not given out yet."""

    def __init__(self, client: KinesisClient, shard: str, at: Place) -> None:
        self.at = at
        """Where the first of the records is, or would be."""
        self.records: deque[KinesisRecord] = deque()
        self._client = client
        self._shard = shard
        self._end: Place = at
        self._iterator: str | None = None
        self._bytes = 0
        self._not_before = 0.0
        self._pause = _PAUSE_S
        self._closed = False
        self._caught_up_ms = 0

    @property
    def is_done(self) -> bool:
        """Whether the shard was closed, and all of it was given out."""
        return self._closed and not self.records

    def fill(self, most: int) -> None:
        """Read ahead, as far as there is something, it is not too much, and Kinesis allows it."""
        renewed = 0
        while not self._closed and len(self.records) < most and self._bytes < MOST_BYTES:
            if time.monotonic() < self._not_before:
                return
            asked_ms = int(time.time() * 1000)
            try:
                if self._iterator is None:
                    self._iterator = self._client.iterator(self._shard, self._end)
                page = self._client.page(self._iterator)
            except IteratorExpired:
                self._iterator = None
                renewed = renewed + 1
                if renewed > 1:
                    self._wait()  # one that is new should not have expired
                    return
                continue
            except Throttled:
                self._wait()
                return
            self.records.extend(page.records)
            if page.records:
                self._end = ("AFTER_SEQUENCE_NUMBER", page.records[-1].sequence_number)
                self._bytes += sum(len(record.data) for record in page.records)
            self._iterator = page.following
            self._closed = page.following is None
            self._pause = _PAUSE_S
            # A page without records is not the end: there may be more behind a gap.
            if page.behind_ms == 0:
                self._caught_up_ms = asked_ms
                self._not_before = time.monotonic() + _PAUSE_S
                return

    def fitting(self, number: int, most_bytes: int | None) -> int:
        """How many of the first records have no more bytes than that together, but one of them."""
        if most_bytes is None:
            return number
        sizes = accumulate(len(record.data) for record in islice(self.records, number))
        return min(number, max(1, sum(1 for _ in takewhile(most_bytes.__ge__, sizes))))

    def take(self, number: int) -> list[KinesisRecord]:
        taken = [self.records.popleft() for _ in range(number)]
        if taken:
            self.at = ("AFTER_SEQUENCE_NUMBER", taken[-1].sequence_number)
            self._bytes -= sum(len(record.data) for record in taken)
        return taken

    def has_reached(self, stop_ms: int) -> bool:
        """Whether whatever arrived up to a time was given out."""
        if self.records:
            return self.records[0].arrived > stop_ms
        return self._closed or self._caught_up_ms >= stop_ms

    def seen(self, before: int) -> int:
        """Up to which time it is known that no record is missing from what was given out."""
        if not self.records:
            return max(before, self._caught_up_ms)
        return max(before, self.records[0].arrived - 1)

    def _wait(self) -> None:
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


def lost_since(
    client: KinesisClient, shard: str, position: ShardPosition, retention_ms: int
) -> int | None:
    """Since when records of a shard may be lost to retention, in milliseconds; None if none is.

    Kinesis goes on with what is there and says nothing. The last record that was read is still
    there, or it is known that there was no other in the time of which records are gone.
    """
    kind, value = position["at"]
    gone_before = int(time.time() * 1000) - retention_ms
    if is_ended(position) or position["seen"] >= gone_before:
        return None
    first = client.first(shard, EARLIEST) if kind.endswith("SEQUENCE_NUMBER") else None
    if first is not None and int(first.sequence_number) <= int(value):
        return None
    return int(position["seen"])
