"""A snapshot that fits the program, and what follows for the attempt that starts from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.core.errors import ConfigurationError, CorruptFileError
from turnback.driver.sinks import JobSinks
from turnback.job.directory import JobDirectory
from turnback.sinks.base import target_version
from turnback.snapshot.matching import Match
from turnback.snapshot.snapshot import Snapshot


@dataclass(frozen=True)
class Matched:
    """A snapshot that fits the program."""

    snapshot: Snapshot
    own: Manifest | None
    """It as a checkpoint of the job's own, if it is one."""
    logged: Manifest | None = None
    """It as a checkpoint in the job's own log; `own`, or one from before a fresh start."""
    claims: Match | None = None
    """Who gets what of it, if it has to be taken in."""
    upgrade: bool = False
    """Whether another program has taken it."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    """By each sink of the snapshot with promised output, the sink of the program to commit it."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Those of the snapshot, under the uids of the program."""
    is_over: bool = False
    """Whether the job has come to its end with it: nothing is left but to commit its output."""

    @property
    def left_out(self) -> list[str]:
        """The sinks of the snapshot whose promised output is left out, as the user allows."""
        return [uid for uid in self.snapshot.promising_sinks if uid not in self.sinks]

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on from it although event time has ended in it."""
        return self.snapshot.drained and not self.is_over

    def promised(self, uid: str) -> tuple[bytes, ...]:
        """The promised output that a sink of the program has to commit."""
        handles = (self.snapshot.promised[was] for was, now in self.sinks.items() if now == uid)
        return tuple(chain.from_iterable(handles))


def commit_promised(log: CheckpointLog, sinks: JobSinks, matched: Matched | None) -> None:
    """Commit what the snapshot promises, and nothing else; a savepoint then lacks nothing."""
    if matched is None:
        return
    manifest = matched.snapshot.manifest
    for uid, committer in sinks.committers.items():
        promised = matched.promised(uid)
        if not promised:
            continue
        committer.commit(promised)
        if manifest is not None:
            done = [was for was, now in matched.sinks.items() if now == uid]
            version = target_version(committer)
            targets = {} if version is None else dict.fromkeys(done, version)
            log.record_commit(manifest.number, done, targets)


def abandoned_output(log: CheckpointLog, chosen: Manifest | None) -> tuple[int, ...]:
    """The checkpoints of a log whose promised output is rolled back by a start from `chosen`.

    With None it starts from something that is not in the log. Checkpoints from before a fresh start
    are among them, because sinks roll back their output as well. Later it cannot be told any more:
    what the new lineage commits has greater numbers, which cover those of the old one.
    """
    return tuple(
        manifest.number
        for manifest in log.scan().manifests
        if (chosen is None or manifest.number != chosen.number) and log.uncommitted(manifest)
    )


def require_files(directory: JobDirectory, manifest: Manifest) -> None:
    """Refuse a checkpoint whose files are gone, before a start from it is recorded.

    An object store may bring the manifest of a checkpoint back that was dropped: a write of it was
    repeated, and came late. Every later start would go on from there.

    Raises:
        CorruptFileError: A file is missing.
    """
    storage = directory.storage
    wanted = set(manifest.files())
    folders = {path.partition("/")[0] for path in wanted}
    missing = sorted(wanted.difference(*(storage.list(folder) for folder in folders)))
    if missing:
        raise CorruptFileError(
            f"{manifest.name} of job {directory.name!r} cannot be started from: "
            f"{storage.uri}/{missing[0]} is missing"
            f"{f', with {len(missing) - 1} others' if len(missing) > 1 else ''}. Start from "
            "another checkpoint or a savepoint"
        )


def require_kept_output(directory: JobDirectory, snapshot: Snapshot) -> None:
    """Refuse a checkpoint whose promised output a later attempt has rolled back.

    Raises:
        ConfigurationError: Records would be lost: the job would go on after them.
    """
    manifest = snapshot.manifest
    # Whether its output counts as committed says nothing: what came later in its place may be.
    if manifest is None:
        return
    for attempt in sorted(directory.attempts(), reverse=True):
        info = directory.attempt(attempt) if attempt > manifest.attempt else None
        if info is None:
            continue
        if info.checkpoint == manifest.number:
            # It recorded its start when what is promised was committed, so that a driver it has
            # replaced had nothing left to roll back.
            return
        if manifest.number in info.abandoned:
            raise ConfigurationError(
                f"{snapshot.name} of job {directory.name!r} cannot be started from: the output "
                f"that it promised was rolled back in attempt {attempt}, which was started from "
                "something else or aborted it by hand, so its records would be lost. Start from an "
                "older checkpoint or a savepoint, which writes them again"
            )


def record_left_out(log: CheckpointLog, matched: Matched | None) -> None:
    """Record that nobody commits any more what the user allows to leave out.

    To be called when the start is recorded, and before sinks roll back what is not promised any
    more: whoever looks for it later, by hand or with the sink back again, would find it gone.
    """
    if matched is not None and matched.own is not None and matched.left_out:
        log.record_commit(matched.own.number, matched.left_out)


def roll_back_leftovers(sinks: JobSinks) -> None:
    """Roll back what earlier attempts have prepared, now that all that is promised is committed.

    To be called when it is durable what this attempt starts from: until then another start may go
    on from a newer checkpoint, which promises what would be rolled back here.
    """
    for committer in sinks.committers.values():
        committer.recover(())
    sinks.record()
