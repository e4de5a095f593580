"""At which checkpoint a request ends its job, as files that survive the driver.

ops/<id>.decision-<n>.json  the request <id> ends the job at checkpoint <n>
"""

from __future__ import annotations

import re

import msgspec

from turnback.core.errors import NotFoundError
from turnback.storage.base import Storage
from turnback.storage.envelope import check_id, decode_document, encode_document, is_id

DIRECTORY = "ops"
FORMAT = 1
_KIND = "request-decision"
_FILE = re.compile(rf"{DIRECTORY}/([^/.]+)\.decision-([1-9][0-9]*)\.json")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stop, or a cancel with savepoint, ends the job.

    It holds as long as the request has no result and the checkpoint is the newest of the job:
    until then no attempt runs an epoch after it.

    Attributes:
        id: The request.
        checkpoint: The last checkpoint.
        epoch: The last epoch in it.
        attempt: The attempt that has decided it.
    """

    id: str
    checkpoint: int
    epoch: int
    attempt: int


class Decisions:
    """What was decided about the requests of one job.

    There may be several for a request: one that comes late, from a driver that was replaced, has a
    name of its own, overwrites nothing, and names a checkpoint that is not the newest any more.

    Args:
        storage: The job directory.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, decision: Decision) -> None:
        """Write a decision down; durable on return."""
        data = encode_document(_KIND, FORMAT, decision)
        self._storage.put(_path(decision.id, decision.checkpoint), data)

    def holding(self, id_: str, checkpoint: int, epoch: int) -> Decision | None:
        """Return the decision that holds for a request without result, `None` if there is none.

        Args:
            id_: The request.
            checkpoint: The number of the newest checkpoint of the job.
            epoch: Its epoch.

        Raises:
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer version.
        """
        path = _path(id_, checkpoint)
        try:
            data = self._storage.get(path)
        except NotFoundError:
            return None
        found = decode_document(_KIND, FORMAT, data, f"{self._storage.uri}/{path}", Decision)
        return found if (found.id, found.epoch) == (id_, epoch) else None


def decided(path: str) -> str | None:
    """Return the request that a file of the job directory decides about, if it is a decision."""
    match = _FILE.fullmatch(path)
    return match[1] if match is not None and is_id(match[1]) else None


def _path(id_: str, checkpoint: int) -> str:
    return f"{DIRECTORY}/{check_id(id_, 'request')}.decision-{checkpoint}.json"
