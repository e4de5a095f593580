"""The linear log of checkpoints: the only commit point, and the fence between attempts.

Slots are numbered without gaps and written with put-if-absent. A new attempt puts a fence into
the first free slot, which is the slot its predecessor would write next; fences are never deleted,
so a predecessor that is still alive can never append again.

An attempt that the user told to start from something else than the newest checkpoint puts that into
the next slot, in a second fence. A driver that takes over either sees it there or has that slot.

Checkpoints are deleted, and their slots are free again. A start that was held up between listing
and writing may put its fence into such a slot, where it stops nobody; therefore a fence counts only
if it is still the newest slot after it was written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from turnback.checkpoint.commits import CommitRecords
from turnback.checkpoint.manifest import (
    Fence,
    Listing,
    Manifest,
    Slot,
    StartPoint,
    Unreadable,
    decode,
    encode,
    read_newest,
)
from turnback.errors import (
    AlreadyExistsError,
    CheckpointError,
    CheckpointNotFoundError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    NotFoundError,
)
from turnback.storage.base import Storage, put_if_absent_or_same

DIRECTORY = "checkpoints"
_SLOT = re.compile(rf"{DIRECTORY}/chk-([1-9][0-9]*)\.json")


@dataclass(frozen=True)
class Scan:
    """All checkpoints of the log, and why others cannot be read."""

    manifests: tuple[Manifest, ...]
    unreadable: dict[int, Unreadable]


def slot_path(number: int) -> str:
    """Return the path of a slot inside the job directory."""
    return f"{DIRECTORY}/chk-{number}.json"


class CheckpointLog:
    """The checkpoints of one job.

    Reading needs no preparation. To append, take a fence first; one object belongs to one
    attempt, and appends come from one thread at a time.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._commits = CommitRecords(storage, DIRECTORY)
        self._fence: Fence | None = None
        self._next = 0
        self._nonces: dict[int, str] = {}
        """Of attempts that were looked up: their fences never change, and are never deleted."""

    @property
    def uri(self) -> str:
        return self.storage.uri

    @property
    def own_fence(self) -> Fence:
        """The fence that this object has taken, and with it the right to append."""
        if self._fence is None:
            raise CheckpointError(f"the checkpoint log of {self.uri} was opened for reading only")
        return self._fence

    # -- reading

    def numbers(self) -> list[int]:
        matches = map(_SLOT.fullmatch, self.storage.list(DIRECTORY))
        return sorted(int(match[1]) for match in matches if match)

    def get(self, number: int) -> Slot:
        """Read a slot; raises `CheckpointNotFoundError` or `CorruptFileError`."""
        path = slot_path(number)
        try:
            data = self.storage.get(path)
        except NotFoundError:
            raise CheckpointNotFoundError(f"{path} does not exist in {self.uri}") from None
        slot = decode(data, f"{self.uri}/{path}")
        if slot.number != number:
            raise CorruptFileError(
                f"{self.uri}/{path} contains checkpoint {slot.number}: it was copied or renamed"
            )
        return slot

    def newest(self) -> Slot | None:
        """Return the newest slot, fences included; raises `CorruptFileError` if it is damaged."""
        return self._list().newest

    def latest(self) -> Manifest | None:
        """Return the newest checkpoint, `None` if there is none; not if a slot above is damaged.

        An older one is never given instead: sinks may have committed what the damaged one holds.
        """
        return next(self._readable(), None)

    def find(self, before_ms: int) -> Manifest | None:
        """Return the checkpoint with the highest number created at or before a time."""
        return next((m for m in self._readable() if m.created_ms <= before_ms), None)

    def scan(self) -> Scan:
        """Return all readable checkpoints in order, and what cannot be read."""
        slots = list(self._newest_first())
        manifests = tuple(slot for _, slot in reversed(slots) if isinstance(slot, Manifest))
        return Scan(manifests, {n: slot for n, slot in slots if not isinstance(slot, Manifest)})

    def nonce_of(self, attempt: int) -> str | None:
        """Return which driver had an attempt; `None` if the log has no such attempt.

        Raises `CorruptFileError` if a slot is damaged that may be that of the attempt.
        """
        if attempt in self._nonces:
            return self._nonces[attempt]
        damaged: Unreadable | None = None
        for number in reversed(self.numbers()):
            try:
                slot = self.get(number)
            except CheckpointNotFoundError:
                continue  # a checkpoint, which was dropped since
            except (CorruptFileError, FormatVersionError) as error:
                damaged = error  # a checkpoint, unless it is the very fence
                continue
            if slot.attempt < attempt:
                break
            if isinstance(slot, Fence) and slot.attempt == attempt:
                self._nonces[attempt] = slot.nonce
                return slot.nonce
        if damaged is not None:
            raise damaged
        return None

    def newest_epoch(self, attempt: int) -> int | None:
        """Return the newest epoch of an attempt that has a checkpoint; 0 if none has.

        `None` if that cannot be told any more: a newer attempt has checkpoints, they were all
        dropped when the job ended, or some cannot be read.
        """
        for number in reversed(self.numbers()):
            try:
                slot = self.get(number)
            except (CheckpointNotFoundError, CorruptFileError, FormatVersionError):
                return None
            if slot.attempt < attempt:
                break
            if isinstance(slot, Manifest):
                return slot.epoch if slot.attempt == attempt else None
            if slot.ended:
                return None
        return 0

    # -- writing

    def fence(
        self,
        *,
        job: str,
        job_id: str,
        created_ms: int,
        host: str,
        pid: int,
        nonce: str,
        after: int | None = None,
    ) -> Fence:
        """Start an attempt: take the first free slot and with it the right to append.

        The nonce tells this driver apart from any other; `after` is the attempt that the same
        driver restarts from.

        Raises:
            FencedError: Another driver of this job started at the same moment and won, or has
                taken over since attempt `after`.
            CorruptFileError: The newest slot is damaged, so the next attempt is not known.
        """
        while True:
            # Both from one listing: of what lands after it, the claim below learns.
            listing = self._list()
            top = listing.newest
            if after is not None and top is not None and top.attempt != after:
                self._check_own(top, nonce, after)
            fence = Fence(
                job=job,
                job_id=job_id,
                number=top.number + 1 if top else 1,
                attempt=top.attempt + 1 if top else 1,
                created_ms=created_ms,
                host=host,
                pid=pid,
                nonce=nonce,
                manifests=listing.manifests,
            )
            try:
                put_if_absent_or_same(self.storage, slot_path(fence.number), encode(fence))
            except AlreadyExistsError:
                self._explain_lost_start(fence)
                continue
            if self._is_in_force(fence):
                self._fence = fence
                self._next = fence.number + 1
                return fence

    def record_start(self, start: StartPoint) -> None:
        """Make durable what this attempt was told to start from, before it takes a checkpoint.

        Every later start sees it: whoever takes over first does so in the very slot it needs.

        Raises:
            FencedError: A newer attempt has taken over, and goes on from something else.
            CommitStateUnknownError: It may or may not have been written; nothing may be done that
                follows from it.
        """
        self._put_next(msgspec.structs.replace(self.own_fence, start=start))

    def append(self, manifest: Manifest) -> tuple[Manifest, ...]:
        """Make a checkpoint durable in the next slot.

        A write of this attempt with an unknown outcome may turn up in that slot. It is a complete
        checkpoint like any other; the given one is then written behind it. Returns all of them in
        order, with the numbers they really have.

        Raises:
            FencedError: A newer attempt has taken over.
            CommitStateUnknownError: It may or may not have been written; append again to find out.
        """
        late = self._put_next(manifest)
        return (*late, msgspec.structs.replace(manifest, number=self._next - 1))

    def end(self) -> tuple[Manifest, ...]:
        """Give up the right to append, so that the newest checkpoint can be removed.

        No write still on its way can become a checkpoint then. Returns the manifests of this
        attempt whose outcome was not known until now.
        """
        late = self._put_next(msgspec.structs.replace(self.own_fence, manifests=(), ended=True))
        self._fence = None
        return late

    def check_fence(self) -> None:
        """Raise `FencedError` if a newer attempt has taken over."""
        own = self.own_fence
        number = self._next  # a manifest may be appended meanwhile
        try:
            self.storage.get(slot_path(number))
        except NotFoundError:
            return
        self._own_late_write(own, number)

    def remove(self, number: int) -> None:
        """Remove a checkpoint; a missing one is fine, a fence is refused.

        The slot is read although the driver knows what it wrote: if the job was deleted and made
        anew while the driver was paused, the slot may hold the fence of the new job.
        """
        try:
            slot = self.get(number)
        except CheckpointNotFoundError:
            return
        if isinstance(slot, Fence):
            raise CheckpointError(
                f"{slot_path(number)} in {self.uri} is a fence and must not be deleted"
            )
        self.storage.delete(slot_path(number))

    # -- which sink work is done

    def record_commit(
        self,
        number: int,
        sinks: Collection[str] | None = None,
        targets: Mapping[str, str] | None = None,
    ) -> None:
        """Record that sinks (all, or those with these uids) have done the work of a checkpoint.

        With it everything up to that checkpoint is committed. A record only ever goes up. `targets`
        are the versions that the targets of sinks have now.
        """
        self._commits.write(self.own_fence.attempt, number, sinks, targets)

    def targets(self, number: int) -> dict[str, str]:
        """Return which version of each target matches a checkpoint, if known, by sink uid."""
        return self._commits.read().targets.get(number, {})

    def committed(self) -> int:
        """Return the highest checkpoint whose sink work is known to be committed, or 0."""
        return self._commits.read().number

    def uncommitted(self, manifest: Manifest) -> dict[str, tuple[bytes, ...]]:
        """Return the transactions of a checkpoint that are not known to be committed, by sink uid.

        What is known to be committed need not be there any more: its reader may have taken it.
        """
        known = self._commits.read()
        return {
            uid: transactions
            for uid, transactions in manifest.transactions.items()
            if transactions and manifest.number > known.by(uid)
        }

    # -- internals

    def _put_next(self, slot: Slot) -> tuple[Manifest, ...]:
        own = self.own_fence
        late: list[Manifest] = []
        while True:
            slot = msgspec.structs.replace(slot, number=self._next)
            try:
                put_if_absent_or_same(self.storage, slot_path(self._next), encode(slot))
            except AlreadyExistsError:
                late.append(self._own_late_write(own, self._next))
                self._next += 1
                continue
            self._next += 1
            return tuple(late)

    def _readable(self) -> Iterator[Manifest]:
        """Give the checkpoints, newest first; raises when it comes to one that is damaged."""
        for _, slot in self._newest_first():
            if not isinstance(slot, Manifest):
                raise slot
            yield slot

    def _newest_first(self) -> Iterator[tuple[int, Manifest | Unreadable]]:
        """Give the checkpoints, or why they cannot be read, newest first."""
        given = False
        while not given:
            listing = self._list()
            for number in reversed(listing.manifests):
                try:
                    slot = listing.slots.get(number) or self.get(number)
                except CheckpointNotFoundError:
                    if not given:
                        break  # the newest was dropped since, so a newer one is there: list again
                except (CorruptFileError, FormatVersionError) as error:
                    given = True
                    yield number, error
                else:
                    if isinstance(slot, Manifest):
                        given = True
                        yield number, slot
            else:
                return

    def _list(self) -> Listing:
        while True:
            numbers = self.numbers()
            listing = read_newest(numbers, self.get)
            # The newest slot is dropped only after a newer one was written.
            if not numbers or numbers[-1] in {*listing.slots, *listing.unreadable}:
                return listing

    def _check_own(self, top: Slot, nonce: str, after: int) -> None:
        """Refuse to restart a failed attempt whose driver was replaced without knowing it."""
        if not isinstance(top, Fence) or top.nonce != nonce:
            raise FencedError(
                f"job {top.job!r}: this driver cannot restart attempt {after}, because attempt "
                f"{top.attempt} has taken over at chk-{top.number}. Stop this driver"
            )

    def _is_in_force(self, fence: Fence) -> bool:
        """Whether a fence is above all its predecessors wrote; raises if a driver took over."""
        top = self.newest()
        if top == fence:
            return True
        if top is not None and top.attempt >= fence.attempt:
            raise FencedError(
                f"job {fence.job!r}: another driver started at the same moment and won attempt "
                f"{top.attempt} at chk-{top.number}. This driver has written nothing; leave it "
                "stopped"
            )
        return False

    def _explain_lost_start(self, mine: Fence) -> None:
        try:
            taken = self.get(mine.number)
        except CheckpointNotFoundError:
            return  # a checkpoint, which was dropped since
        if isinstance(taken, Fence) and self._is_rival(taken, mine):
            raise FencedError(
                f"job {mine.job!r}: another driver (pid {taken.pid} on {taken.host}) started at "
                f"the same moment and won attempt {taken.attempt}. This driver has written "
                "nothing; leave it stopped"
            )

    @staticmethod
    def _is_rival(taken: Fence, mine: Fence) -> bool:
        """Whether a fence in the slot of this start is that of another start.

        The storage may perform a write late that it has answered with an error. Of an older attempt
        that is what it was told to start from, or its end; of this driver, a fence it has given up.
        """
        return taken.attempt >= mine.attempt and taken.nonce != mine.nonce

    def _own_late_write(self, own: Fence, number: int) -> Manifest:
        taken = self.get(number)
        if isinstance(taken, Manifest) and taken.attempt == own.attempt:
            return taken
        raise FencedError(
            f"job {own.job!r}: attempt {own.attempt} (pid {own.pid} on {own.host}) can no longer "
            f"commit, because attempt {taken.attempt} has taken over at chk-{taken.number}. Stop "
            "this driver"
        )
