"""A snapshot that fits the program, and what follows for the attempt that starts from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.sinks.base import target_version
from turnback.snapshot.matching import Match
from turnback.snapshot.snapshot import Snapshot
from turnback.spark.sinks import JobSinks


@dataclass(frozen=True)
class Matched:
    """A snapshot that fits the program."""

    snapshot: Snapshot
    own: Manifest | None
    """It as a checkpoint of the job's own, if it is one."""
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
    def goes_on(self) -> bool:
        """Whether the job goes on from it although event time has ended in it."""
        return self.snapshot.drained and not self.is_over

    def promised(self, uid: str) -> tuple[bytes, ...]:
        """The promised output that a sink of the program has to commit."""
        handles = (self.snapshot.promised[was] for was, now in self.sinks.items() if now == uid)
        return tuple(chain.from_iterable(handles))


def settle(log: CheckpointLog, sinks: JobSinks, matched: Matched | None) -> None:
    """Commit what was promised; before anything else, so that a savepoint lacks nothing."""
    manifest = matched.snapshot.manifest if matched is not None else None
    for uid, committer in sinks.committers.items():
        promised = matched.promised(uid) if matched is not None else ()
        committer.recover(promised)
        if promised and matched is not None and manifest is not None:
            done = [was for was, now in matched.sinks.items() if now == uid]
            version = target_version(committer)
            targets = {} if version is None else dict.fromkeys(done, version)
            log.record_commit(manifest.number, done, targets)
    sinks.record()
