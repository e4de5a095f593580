"""Which checkpoints and files are retained, and which are deleted."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.errors import StorageError
from turnback.storage.base import delete_files

_LOG = logging.getLogger(__name__)
# Only what an attempt of this job wrote is ever deleted, whatever a manifest may reference.
_OURS = re.compile(r"(?:state|offsets)/([0-9]+)/.+")


class PinnedFiles:
    """Files that must not be deleted yet, whatever retention says. Thread-safe.

    A driver shares one object between its attempts, so that an export goes on while the job
    restarts. Pins do not outlive the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pinned: dict[PinnedCheckpoint, frozenset[str]] = {}
        self._on_unpin: Callable[[], None] = lambda: None

    def on_unpin(self, callback: Callable[[], None]) -> None:
        """Call this after each unpin, instead of what was called before."""
        with self._lock:
            self._on_unpin = callback

    def pin(self, checkpoint: PinnedCheckpoint) -> None:
        with self._lock:
            self._pinned[checkpoint] = frozenset(checkpoint.manifest.files())

    def unpin(self, checkpoint: PinnedCheckpoint) -> None:
        """Let go of its files; a second time changes nothing."""
        with self._lock:
            known = self._pinned.pop(checkpoint, None) is not None
            on_unpin = self._on_unpin
        if known:
            on_unpin()

    def paths(self) -> frozenset[str]:
        with self._lock:
            return frozenset[str]().union(*self._pinned.values())


class PinnedCheckpoint:
    """A complete checkpoint whose files stay until it is released; release it in any case.

    Retention may drop its manifest meanwhile. As a context manager it releases itself.
    """

    def __init__(self, manifest: Manifest, pins: PinnedFiles) -> None:
        self.manifest = manifest
        self._pins = pins
        pins.pin(self)

    def release(self) -> None:
        """Let go of the files; those that nobody needs are deleted. May be called twice."""
        self._pins.unpin(self)

    def __enter__(self) -> PinnedCheckpoint:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def attempt_of(path: str) -> int | None:
    """Return the attempt that wrote a state or offset file, `None` for any other file."""
    match = _OURS.fullmatch(path)
    return int(match[1]) if match else None


class Retention:
    """Keeps the newest checkpoints, and every file one of them still references.

    A checkpoint goes in two steps: its manifest, then the files nobody else references. A crash in
    between leaves files without a manifest, never a manifest without files; `sweep` finds them.
    Files that are pinned stay until they are released.
    """

    def __init__(self, log: CheckpointLog, keep: int, pins: PinnedFiles | None = None) -> None:
        self._log = log
        self._storage = log.storage
        self._keep = keep
        self._pins = pins or PinnedFiles()
        self._lock = threading.Lock()
        self._retained: dict[int, frozenset[str]] = {}
        self._retired: set[str] = set()
        self._certain = True
        self._ended: int | None = None

    def load(self) -> None:
        scan = self._log.scan()
        with self._lock:
            self._retained = {m.number: frozenset(m.files()) for m in scan.manifests}
        self._certain = not scan.unreadable
        for error in scan.unreadable.values():
            _LOG.warning("cannot read a checkpoint, so old files are kept: %s", error)

    def add(self, manifest: Manifest) -> None:
        with self._lock:
            self._retained[manifest.number] = frozenset(manifest.files())

    def retire(self, paths: Collection[str]) -> None:
        """Delete these files as soon as nobody references them."""
        with self._lock:
            self._retired.update(paths)

    def numbers(self) -> list[int]:
        with self._lock:
            return sorted(self._retained)

    def clean(self, in_use: Callable[[], Collection[str]]) -> None:
        """Drop surplus checkpoints, then the files that nobody references any more.

        The files `in_use` are those that the running epoch and pending checkpoints need. If a newer
        attempt has taken over, no file is touched: `FencedError`.
        """
        surplus = self.numbers()[: -self._keep]
        with self._lock:
            if not surplus and not self._retired:
                return
        self._log.check_fence()
        self._drop(surplus)
        # Again, because whoever has taken over since may have started from what was surplus. Later
        # nobody can: its manifest is gone.
        self._log.check_fence()
        self._delete_retired(in_use)

    def sweep(self, attempt: int, in_use: Callable[[], Collection[str]]) -> None:
        """Delete what attempts before this one left behind without a checkpoint that needs it."""
        if not self._certain:
            return
        self._log.check_fence()
        self._retire_written(lambda writer: writer < attempt)
        self._delete_retired(in_use)

    def end(self) -> tuple[Manifest, ...]:
        """End the attempt; return checkpoints whose outcome was not known, see the log's `end`."""
        attempt = self._log.own_fence.attempt
        late = self._log.end()
        self._ended = attempt
        for manifest in late:
            self.add(manifest)
        return late

    def delete_all(self) -> None:
        """After `end`, drop every checkpoint and all state files of the job.

        What is pinned goes with `delete_released`. What an attempt that has started since writes is
        not touched.
        """
        last = self._ended
        assert last is not None
        self._drop(self.numbers())
        if self._certain and not self.numbers():
            self._retire_written(lambda writer: writer <= last)
        self._delete_retired(lambda: ())

    def delete_released(self) -> None:
        """After `delete_all`, delete what was pinned then; before, that is left to clean-up."""
        if self._ended is not None:
            self._delete_retired(lambda: ())

    def _retire_written(self, by: Callable[[int], bool]) -> None:
        for directory in ("state", "offsets"):
            paths = self._storage.list(directory)
            self.retire([p for p in paths if (n := attempt_of(p)) is not None and by(n)])

    def _drop(self, numbers: Collection[int]) -> None:
        for number in numbers:
            try:
                self._log.remove(number)
            except StorageError as error:
                _LOG.warning("cannot delete chk-%d, retrying later: %s", number, error)
                return
            with self._lock:
                self._retired |= self._retained.pop(number)

    def _delete_retired(self, in_use: Callable[[], Collection[str]]) -> None:
        needed = set(in_use())
        with self._lock:
            # What a checkpoint references comes back when that checkpoint is dropped.
            self._retired.difference_update(*self._retained.values())
            # Read after `in_use`: what passes from in use to pinned is seen at least once.
            deletable = sorted(self._retired - needed - self._pins.paths())
        ours = [path for path in deletable if attempt_of(path) is not None]
        failed = delete_files(self._storage, ours)
        for path, error in failed.items():
            _LOG.warning("cannot delete %s, retrying later: %s", path, error)
        with self._lock:
            self._retired.difference_update(set(deletable).difference(failed))
