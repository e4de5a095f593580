"""What a job's sinks are, written down for when the program is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from turnback.coordinator.document import decode_document, encode_document
from turnback.coordinator.jobdir import JobDirectory
from turnback.core.errors import CorruptFileError

if TYPE_CHECKING:
    from turnback.sinks.base import Sink

FORMAT = 1
_KIND = "sink"
_FILE = "sink.json"


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sink of the newest attempt that came so far as to settle older transactions.

    Attributes:
        uid: Of the operator.
        attempt: The attempt.
        description: What the sink says of itself, see `Sink.describe`.
    """

    uid: str
    attempt: int
    description: dict[str, str]


def record_sinks(directory: JobDirectory, attempt: int, sinks: Mapping[str, Sink]) -> None:
    """Write down the sinks of an attempt.

    To be called after the transactions of earlier attempts are settled: until then, what is
    needed to settle them by hand is what those attempts have written down.

    Args:
        directory: The job.
        attempt: The attempt.
        sinks: By operator uid.
    """
    for uid, sink in sinks.items():
        record = SinkRecord(uid=uid, attempt=attempt, description=sink.describe())
        directory.storage.put(_path(directory, uid), encode_document(_KIND, FORMAT, record))


def recorded_sinks(directory: JobDirectory) -> dict[str, SinkRecord]:
    """Return what is written down of all sinks that a job has or had, by uid.

    Raises:
        CorruptFileError: A record is damaged.
        FormatVersionError: A record was written by a newer version.
    """
    found: dict[str, SinkRecord] = {}
    for path in directory.storage.list("sinks"):
        if not path.endswith(f"/{_FILE}"):
            continue
        name = f"{directory.storage.uri}/{path}"
        data = directory.storage.get(path)
        record = decode_document(_KIND, FORMAT, data, name, SinkRecord)
        if path != _path(directory, record.uid):
            raise CorruptFileError(f"{name} is of sink {record.uid!r}: it was copied or renamed")
        found[record.uid] = record
    return found


def _path(directory: JobDirectory, uid: str) -> str:
    return f"{directory.sink_path(uid)}/{_FILE}"
