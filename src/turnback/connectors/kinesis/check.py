"""Whether Kinesis has what a source reads, and how far the source is behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from turnback.connectors.kinesis.client import KinesisClient
from turnback.connectors.kinesis.positions import kinesis_position
from turnback.connectors.kinesis.shards import is_ended, lost_since
from turnback.core.errors import ConfigurationError
from turnback.plan.sources import SourceLag

_LOG = logging.getLogger(__name__)
GO_ON = (
    "Start from a newer checkpoint or savepoint; or go on with what is there: "
    "set_fail_on_data_loss(False)"
)


def gone_text(shard: str) -> str:
    """What to say of a shard that Kinesis does not list any more."""
    return f"shard {shard!r} is gone, and was not read to its end, so what was left in it is lost"


def lost_text(shard: str, since_ms: int) -> str:
    """What to say of a shard that has lost what comes next."""
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"shard {shard!r} no longer has the record at which the job goes on: what arrived after "
        f"{since} and is older than the stream's retention is lost"
    )


@dataclass(frozen=True)
class KinesisSourceCheck:
    """Makes sure that Kinesis answers, takes the login, and has what comes next.

    Attributes:
        options: Options of the source; may hold keys.
    """

    options: Mapping[str, str] = field(repr=False)

    def __call__(self, name: str, offset: str | None) -> None:
        """Check it.

        Raises:
            ConfigurationError: The stream is missing, the login is refused, or the stream has lost
                what comes next.
            SourceError: Kinesis does not answer.
        """
        client = KinesisClient(self.options, name)
        retention_ms = client.retention_ms()
        listed = {shard.id for shard in client.shards()}
        lost = []
        position = kinesis_position(offset)
        stream = position.get("stream", client.stream)
        if stream != client.stream:
            raise ConfigurationError(
                f"{name}: it goes on in stream {stream!r}, and reads {client.stream!r}. Give the "
                "source another uid to begin anew, or read the same stream"
            )
        for shard, at in position.get("shards", {}).items():
            if shard not in listed:
                if not is_ended(at):
                    lost.append(gone_text(shard))
                continue
            since = lost_since(client, shard, at, retention_ms)
            if since is not None:
                lost.append(lost_text(shard, since))
        if lost and self.options["fail_on_data_loss"] == "true":
            raise ConfigurationError(f"{name}: {'; '.join(lost)}. {GO_ON}")
        for text in lost:
            _LOG.warning("%s: %s; it goes on with what is there", name, text)


# -- while the job runs


class KinesisLagReader:
    """Tells how old the oldest record is that a source has not read; nobody knows how many."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._client = KinesisClient(options, "KinesisSource")

    def read(self, offset: str | None) -> SourceLag | None:
        shards = kinesis_position(offset).get("shards", {})
        if not shards:
            return None
        seconds = 0.0
        for shard, position in shards.items():
            if not is_ended(position):
                oldest = self._client.first(shard, tuple(position["at"]))
                if oldest is not None:
                    seconds = max(seconds, time.time() - oldest.arrived / 1000)
        return SourceLag(None, seconds)

    def close(self) -> None:
        """Connections end by themselves."""
