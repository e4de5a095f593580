"""Steps 3 to 5 of a checkpoint, in the order that makes it safe.

1. decide: `decider.py`
2. all acknowledgements of the epoch are in: `CheckpointCoordinator.epoch_confirmed`
3. write the manifest, the only commit point
4. commit the sinks
5. record the commit, and drop what retention no longer needs
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from turnback.coordinator.committer import Committer, DiscardsOthers
from turnback.coordinator.log import CheckpointLog
from turnback.coordinator.manifest import Fence, Manifest
from turnback.coordinator.pending import PendingCheckpoint
from turnback.core.clock import Clock
from turnback.core.errors import ConfigurationError, SinkError, StorageError

_LOG = logging.getLogger(__name__)


class Steps:
    """The work of one attempt's checkpoints; when it is done is the coordinator's business.

    Args:
        fence: The attempt.
        log: Where manifests go.
        committers: By sink uid.
        clock: For the time of creation.
        parent: The checkpoint the attempt started from.
        max_parallelism: Number of key groups.
        config: What manifests record of the configuration.
    """

    def __init__(
        self,
        fence: Fence,
        log: CheckpointLog,
        committers: Mapping[str, Committer],
        clock: Clock,
        parent: int | None,
        max_parallelism: int,
        config: Mapping[str, Any],
    ) -> None:
        self._fence = fence
        self._log = log
        self._committers = committers
        self._clock = clock
        self._parent = parent
        self._max_parallelism = max_parallelism
        self._config = config

    def write_manifest(self, pending: PendingCheckpoint) -> tuple[Manifest, ...]:
        """Step 3. From here on the checkpoint exists; see `CheckpointLog.append`."""
        manifest = pending.manifest(
            self._fence,
            number=self._log.next_number,
            parent=self._parent,
            created_ms=self._clock.now_ms(),
            max_parallelism=self._max_parallelism,
            config=self._config,
        )
        durable = self._log.append(manifest)
        self._parent = durable[-1].number
        return durable

    def commit_sinks(
        self, transactions: Mapping[str, tuple[bytes, ...]], committed: Callable[[str], None]
    ) -> None:
        """Step 4. Tell each sink to commit, and tell `committed` which have.

        Every sink gets its turn, also when one before it failed.

        Raises:
            SinkError: At least one sink did not commit.
            ConfigurationError: A sink cannot commit, and no later try mends it.
        """
        failed: list[tuple[str, BaseException]] = []
        for uid, handles in transactions.items():
            try:
                self._committers[uid].commit(handles)
            except BaseException as error:  # noqa: BLE001 (the user's code may raise anything)
                failed.append((uid, error))
            else:
                committed(uid)
        if failed:
            for _, hopeless in failed:
                if isinstance(hopeless, ConfigurationError):
                    raise hopeless
            uid, cause = failed[0]
            raise SinkError(
                f"job {self._fence.job!r}: sink {uid!r} could not commit "
                f"{len(transactions[uid])} transactions: {cause}. They stay prepared and will be "
                "committed with the next checkpoint or after a restart"
            ) from cause

    def record_commit(self, number: int, left: Collection[str] = ()) -> None:
        """Step 5. Record which sinks have no work left to do for a checkpoint.

        Args:
            number: The checkpoint.
            left: Uids of the sinks that could not commit; all others have.
        """
        done = [uid for uid in self._committers if uid not in left] if left else None
        try:
            self._log.record_commit(number, done)
        except StorageError as error:
            # Only a shortcut is lost: without the record the same commits are repeated at start.
            _LOG.warning("the commit of chk-%d could not be recorded: %s", number, error)

    def check_fence(self) -> None:
        """Raise `FencedError` if a newer attempt has taken over."""
        self._log.check_fence()

    def roll_back(self, transactions: Mapping[str, tuple[bytes, ...]]) -> None:
        """At the end, roll back what no manifest holds. What fails is left to the next start."""
        for uid, handles in transactions.items():
            try:
                self._committers[uid].abort(handles)
            except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
                _LOG.warning("sink %r could not roll back: %s", uid, error)

    @property
    def can_discard(self) -> bool:
        """Whether `discard_others` does anything."""
        return any(isinstance(one, DiscardsOthers) for one in self._committers.values())

    def discard_others(self, known: Mapping[str, tuple[bytes, ...]]) -> None:
        """Between epochs, roll back what nobody will commit. What fails is left to the next start.

        Args:
            known: What waits for its commit, by sink uid.
        """
        for uid, committer in self._committers.items():
            if isinstance(committer, DiscardsOthers):
                try:
                    committer.discard_others(known.get(uid, ()))
                except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
                    _LOG.warning("sink %r could not roll back what tasks left: %s", uid, error)
