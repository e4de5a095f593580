"""The commits of sinks: who makes them, which are outstanding, and which are recorded as done."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Protocol, runtime_checkable

import msgspec

from turnback.errors import ConfigurationError, NotFoundError, SinkError
from turnback.storage.base import Storage
from turnback.storage.envelope import decode_document, encode_document

_LOG = logging.getLogger(__name__)


class EpochCommitter(Protocol):
    """Settles the transactions of one sink, on the driver; `sinks.base.Committer` has the contract.

    The methods are called one at a time, but not always from the same thread. They may block: the
    stream goes on meanwhile.
    """

    def commit(self, transactions: Sequence[bytes]) -> None: ...

    def abort(self, transactions: Sequence[bytes]) -> None: ...

    def recover(self, pending: Sequence[bytes]) -> None: ...


@runtime_checkable
class DiscardsOthers(Protocol):
    """A committer that can find transactions that nobody will ever commit, and roll them back."""

    def abort_orphans(self, known: Sequence[bytes]) -> None: ...


@runtime_checkable
class TellsTargetVersion(Protocol):
    """A committer whose target has versions, such as a table."""

    def target_version(self) -> str | None: ...


@runtime_checkable
class DefersCommits(Protocol):
    """A committer that lets the output of several checkpoints wait, to publish it at once."""

    def is_due(self, transactions: Sequence[bytes]) -> bool:
        """Say whether to commit now; these are all that wait.

        Asked once for every checkpoint, and as often when no input comes. Until it is true the
        transactions stay promised. Not asked, but committed: when a savepoint is taken, the job
        ends, or is started again.
        """


class OpenTransactions:
    """Sink transactions that are prepared and not yet known to be committed.

    Not thread-safe; the coordinator guards it.
    """

    def __init__(self) -> None:
        self._open: dict[str, deque[tuple[int, bytes]]] = {}

    def add(self, epoch: int, prepared: Mapping[str, tuple[bytes, ...]]) -> None:
        for uid, transactions in prepared.items():
            queue = self._open.setdefault(uid, deque())
            queue.extend((epoch, transaction) for transaction in transactions)

    def upto(self, epoch: int) -> dict[str, tuple[bytes, ...]]:
        """Return what is open of all epochs up to this one, oldest first, by sink uid."""
        return self._select(lambda prepared: prepared <= epoch)

    def after(self, epoch: int) -> dict[str, tuple[bytes, ...]]:
        return self._select(lambda prepared: prepared > epoch)

    def has_upto(self, epoch: int) -> bool:
        return any(queue and queue[0][0] <= epoch for queue in self._open.values())

    def committed(self, uid: str, epoch: int) -> None:
        """Forget what a sink has committed: everything up to this epoch."""
        queue = self._open.get(uid)
        while queue and queue[0][0] <= epoch:
            queue.popleft()

    def _select(self, wanted: Callable[[int], bool]) -> dict[str, tuple[bytes, ...]]:
        selected = {
            uid: tuple(transaction for epoch, transaction in queue if wanted(epoch))
            for uid, queue in self._open.items()
        }
        return {uid: transactions for uid, transactions in selected.items() if transactions}


class Committers:
    """The committers of all sinks of an attempt, by sink uid."""

    def __init__(self, job: str, by_uid: Mapping[str, EpochCommitter]) -> None:
        self._job = job
        self._by_uid = by_uid

    @property
    def uids(self) -> set[str]:
        return set(self._by_uid)

    def commit(
        self,
        transactions: Mapping[str, tuple[bytes, ...]],
        committed: Callable[[str], None],
        *,
        flush: bool = True,
    ) -> None:
        """Have every sink commit, and call `committed` with the uid of each that has.

        Without `flush`, sinks that publish several checkpoints at once may let this one wait.
        Raises `SinkError` if a sink did not commit, and `ConfigurationError` if trying again would
        not help.
        """
        failed: list[tuple[str, BaseException]] = []
        for uid, handles in transactions.items():
            committer = self._by_uid[uid]
            try:
                if isinstance(committer, DefersCommits) and not (
                    flush or committer.is_due(handles)
                ):
                    continue
                committer.commit(handles)
            except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
                failed.append((uid, error))
            else:
                committed(uid)
        for _, cause in failed:
            if isinstance(cause, ConfigurationError):
                raise cause
        for uid, cause in failed:
            raise SinkError(
                f"job {self._job!r}: sink {uid!r} could not commit {len(transactions[uid])} "
                f"transactions: {cause}. They stay prepared and will be committed with the next "
                "checkpoint or after a restart"
            ) from cause

    def target_versions(self) -> dict[str, str]:
        """Return the version of each target that has what was committed, by sink uid."""
        versions = {
            uid: committer.target_version()
            for uid, committer in self._by_uid.items()
            if isinstance(committer, TellsTargetVersion)
        }
        return {uid: version for uid, version in versions.items() if version is not None}

    def roll_back(self, transactions: Mapping[str, tuple[bytes, ...]]) -> None:
        """Roll back what no manifest holds. What fails is left to the next start."""
        for uid, handles in transactions.items():
            try:
                self._by_uid[uid].abort(handles)
            except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
                _LOG.warning("sink %r cannot roll back: %s", uid, error)

    @property
    def can_discard(self) -> bool:
        return any(isinstance(one, DiscardsOthers) for one in self._by_uid.values())

    def abort_orphans(self, known: Mapping[str, tuple[bytes, ...]]) -> None:
        """Roll back what nobody will commit, between two epochs; the next start does what fails."""
        for uid, committer in self._by_uid.items():
            if isinstance(committer, DiscardsOthers):
                try:
                    committer.abort_orphans(known.get(uid, ()))
                except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
                    _LOG.warning("sink %r cannot roll back orphaned transactions: %s", uid, error)


_KIND = "committed"
_FORMAT = 1
_CHECKPOINTS = 50
"""Of how many checkpoints the versions of targets are kept; savepoints have their own record."""


class Committed(msgspec.Struct, frozen=True):
    """How far sinks are known to have committed.

    Attributes:
        number: Every sink has committed everything up to this checkpoint.
        sinks: By uid, the sinks that are known to be further.
        targets: By checkpoint and sink uid, the version of a target that has what the checkpoint
            has, and nothing newer of the job.
    """

    number: int = 0
    sinks: dict[str, int] = {}
    targets: dict[int, dict[str, str]] = {}

    def by(self, uid: str) -> int:
        """Return the highest checkpoint whose work this sink has done, or 0."""
        return max(self.number, self.sinks.get(uid, 0))

    def joined(self, other: Committed) -> Committed:
        number = max(self.number, other.number)
        further = {uid: max(self.by(uid), other.by(uid)) for uid in {**self.sinks, **other.sinks}}
        newest = sorted({*self.targets, *other.targets})[-_CHECKPOINTS:]
        return Committed(
            number,
            {uid: n for uid, n in sorted(further.items()) if n > number},
            {n: {**self.targets.get(n, {}), **other.targets.get(n, {})} for n in newest},
        )


class CommitRecords:
    """The records of all attempts of a job: how far each sink is known to have committed.

    Every attempt writes a file of its own, and what is known is the highest of all files. So a
    driver that was replaced without knowing it can never turn the record of its successor back.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        # "committed.json" is from before each attempt had a file.
        self._name = re.compile(rf"{directory}/committed(?:-([1-9][0-9]*))?\.json")
        self._own: Committed | None = None

    def read(self) -> Committed:
        while True:
            try:
                return reduce(Committed.joined, map(self._get, self._paths()), Committed())
            except NotFoundError:
                continue  # it was joined into a newer one meanwhile

    def write(
        self,
        attempt: int,
        number: int,
        sinks: Collection[str] | None = None,
        targets: Mapping[str, str] | None = None,
    ) -> None:
        """Record that sinks, by default all, have committed everything up to a checkpoint.

        One object records for one attempt, always the same. `targets` are the versions of targets
        after that; those of other sinks are left out.
        """
        new = Committed(number) if sinks is None else Committed(0, dict.fromkeys(sinks, number))
        versions = {u: v for u, v in (targets or {}).items() if sinks is None or u in sinks}
        if versions:
            new = msgspec.structs.replace(new, targets={number: versions})
        first = self._own is None
        before = self._own or self.read()
        known = before.joined(new)
        if known == before:
            return
        path = f"{self._directory}/committed-{attempt}.json"
        self._storage.put(path, encode_document(_KIND, _FORMAT, known))
        self._own = known
        if first:
            for older, writer in self._paths().items():
                if writer < attempt:
                    self._storage.delete(older)

    def _paths(self) -> dict[str, int]:
        """The files there are, and the attempts that wrote them."""
        matches = map(self._name.fullmatch, self._storage.list(self._directory))
        return {match[0]: int(match[1] or 0) for match in matches if match}

    def _get(self, path: str) -> Committed:
        data = self._storage.get(path)
        return decode_document(_KIND, _FORMAT, data, f"{self._storage.uri}/{path}", Committed)
