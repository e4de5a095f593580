"""What an attempt starts from: finding it, matching it with the program, and taking it in."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import END_OF_TIME, Fence, Manifest, SourcePosition
from turnback.driver.context import JobContext
from turnback.driver.engine import stream_names
from turnback.driver.sinks import JobSinks, acquire_targets
from turnback.errors import (
    FINAL,
    ConfigurationError,
    CorruptFileError,
    IncompatibleStateError,
    SinkError,
    SourceError,
)
from turnback.functions.event_time import MIN_TIME
from turnback.job.directory import JobDirectory
from turnback.job.run import ClaimMode
from turnback.job.status import JobState
from turnback.plan.plan import Plan
from turnback.plan.sources import whole_source
from turnback.sinks.base import target_version
from turnback.snapshot.find import locate, resume_point
from turnback.snapshot.matching import (
    StateMapping,
    key_schema,
    known_names,
    known_states,
    match_program,
    program_of,
)
from turnback.snapshot.metadata import StateId
from turnback.snapshot.preflight import check_position, refuse_data_loss
from turnback.snapshot.snapshot import Snapshot, StoredRows, source_uid
from turnback.snapshot.writer import copy_source_log
from turnback.state.subtasks import is_redistributed
from turnback.worker.local_state import intake_task
from turnback.worker.program import LevelProgram, level_programs, pickled
from turnback.worker.state_import import (
    IntakeTask,
    Move,
    ProbeTask,
    RedistributeTask,
    RequestedState,
    WaitingRows,
    requested_state,
)


@dataclass(frozen=True)
class RestorePlan:
    """A snapshot that fits the program."""

    snapshot: Snapshot
    own: Manifest | None
    """It as a checkpoint of the job's own, if it is one."""
    logged: Manifest | None = None
    """It as a checkpoint in the job's own log; `own`, or one from before a fresh start."""
    mapping: StateMapping | None = None
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


def commit_promised(log: CheckpointLog, sinks: JobSinks, matched: RestorePlan | None) -> None:
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
    """
    storage = directory.storage
    wanted = set(manifest.files())
    folders = {path.partition("/")[0] for path in wanted}
    missing = sorted(wanted.difference(*(storage.list(folder) for folder in folders)))
    if missing:
        raise CorruptFileError(
            f"cannot start from {manifest.name} of job {directory.name!r}: "
            f"{storage.uri}/{missing[0]} is "
            f"missing{f', with {len(missing) - 1} others' if len(missing) > 1 else ''}. Start "
            "from another checkpoint or a savepoint"
        )


def require_kept_output(directory: JobDirectory, snapshot: Snapshot) -> None:
    """Refuse a checkpoint whose promised output a later attempt has rolled back.

    Records would be lost: the job would go on after them.
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
                f"cannot start from {snapshot.name} of job {directory.name!r}: its in-doubt "
                f"output was rolled back in attempt {attempt}, which started from another "
                "snapshot or aborted it by hand, so its records would be lost. Start from an "
                "older checkpoint or a savepoint, which writes them again"
            )


def record_left_out(log: CheckpointLog, matched: RestorePlan | None) -> None:
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


_LOG = logging.getLogger(__name__)


class RestorePlanner:
    """Finds what an attempt starts from, and makes of it the manifest that the attempt restores.

    The job's own checkpoint is taken as it is if its state fits the program as it is. Everything
    else is taken in first, see `turnback.worker.state_import`.
    """

    def __init__(self, job: JobContext) -> None:
        self._engine = job.engine
        self._plan = job.plan
        self._spec = job.spec
        self._directory = job.directory
        self._storage = job.storage
        self._clock = job.clock
        self._restoring = job.restoring
        self._programs = level_programs(job.plan)
        self._blobs = [pickled(program, job.engine.pickle) for program in self._programs]
        self._checked: RestorePlan | None = None

    def check(self) -> None:
        """Find what the job starts from, and refuse what does not fit.

        Nothing has been written yet: a start that is refused leaves no trace, neither a new job
        nor another status of one that was stopped. Targets of sinks are claimed last.
        """
        info = self._directory.check_owner()
        job_id = info.job_id if info else ""
        try:
            if not self._spec.start.fresh:
                log = CheckpointLog(self._directory.storage)
                self._checked = self.find(log, job_id, first=True)
            found = self._checked
            if found is not None and found.is_over:
                self._refuse_ended(found)
            snapshot, mapping = (found.snapshot, found.mapping) if found else (None, None)
            _check_sources(self._plan, self._spec.name, snapshot, mapping)
            take_over = self._spec.start.take_over_sinks  # only now: a restart takes nothing back
            options = self._spec.storage_options
            acquire_targets(
                self._plan, self._directory, job_id, options=options, take_over=take_over
            )
        except FINAL:
            raise
        except Exception as e:
            if info is None and isinstance(e, SinkError | SourceError):
                raise  # nothing has run yet: more likely a wrong address than an outage
            # The restart strategy decides, once there is a job.
            _LOG.warning("job %r: cannot check its start: %s", self._spec.name, e)

    def _refuse_ended(self, found: RestorePlan) -> None:
        """Refuse to go on with a job that is complete, unless that is what the user says."""
        status = self._directory.status()
        if self._spec.resumed or status is None or status.state is not JobState.FINISHED:
            return  # it has yet to be ended
        name = found.snapshot.name
        raise ConfigurationError(
            f"job {self._spec.name!r}: event time has reached its end in {name}, so windows that "
            "further input belongs to have already been emitted, and would be emitted again in "
            "part. To continue a bounded run later, run it with end_event_time=False. To "
            f"continue from here anyway, pass start_from={name!r} (turnback run -s "
            f"{self._spec.name}@{name}); to start over, pass fresh=True (--fresh)"
        )

    def find(
        self, log: CheckpointLog, job_id: str, own_attempts: Collection[int] = (), *, first: bool
    ) -> RestorePlan | None:
        """StateMapping what an attempt starts from with the program; `None` to start empty.

        The first attempt starts from what the user chose. `own_attempts` are those of this driver,
        which has this program.
        """
        if self._spec.start.start_from is not None and first:
            return self._match_once(locate(self._spec.start.start_from, self._storage), job_id)
        point = resume_point(log, self._directory)
        if point is None:
            return None
        if point.manifest is None:
            assert point.snapshot is not None
            return self._match_once(locate(point.snapshot, self._storage), job_id)
        snapshot = Snapshot(point.manifest, self._storage, log.uncommitted(point.manifest))
        # A restart is a start like any other, unless this very program has taken the checkpoint.
        known = point.manifest.attempt in own_attempts
        matched = self._match_once(snapshot, job_id, known=known)
        return replace(matched, is_over=snapshot.drained and not point.goes_on)

    def _match_once(self, snapshot: Snapshot, job_id: str, *, known: bool = False) -> RestorePlan:
        """StateMapping a snapshot, unless that was done when the start was checked.

        The job may have been created since then, by another driver, and the checkpoint be its own.
        Or another driver has given up what the checkpoint promises: that is asked every time.
        """
        if snapshot.checkpoint_in(self._storage) is not None:
            require_kept_output(self._directory, snapshot)
        checked = self._checked
        if checked is None or checked.snapshot != snapshot:
            return self.match(snapshot, job_id, known=known)
        if checked.own == snapshot.own_checkpoint(self._storage, job_id):
            return checked
        return self.match(snapshot, job_id, known=known)

    def match(self, snapshot: Snapshot, job_id: str, *, known: bool) -> RestorePlan:
        """Check that a snapshot fits the program; nothing is written.

        It does if it is `known`: a checkpoint that this very program has taken. Raises
        `IncompatibleStateError` if its state does not, or something in it would be lost unasked.
        """
        own = snapshot.own_checkpoint(self._storage, job_id)
        logged = snapshot.checkpoint_in(self._storage)
        if known and own is not None:
            sinks = {uid: uid for uid in snapshot.promised}
            return RestorePlan(snapshot, own, logged, sinks=sinks, watermarks=own.watermarks)
        if logged is not None and self._spec.start.start_from is not None:
            require_files(self._directory, logged)
        self._check_job(snapshot)
        self._check_groups(snapshot)
        mapping, migrations = self._match(snapshot, resumed=own is not None)
        if own is None:
            self._check_pickles(snapshot, mapping)
        _log_changes(snapshot, mapping, migrations)
        as_it_is = own is not None and not migrations and _fits_as_it_is(own, mapping)
        before = {(op.uid, op.kind) for op in snapshot.operators}
        now = {(uid, kind.value) for uid, (_, kind, _) in self._plan.uids().items()}
        return RestorePlan(
            snapshot,
            own,
            logged,
            None if as_it_is else mapping,
            upgrade=before != now or not as_it_is,
            sinks=mapping.sinks,
            watermarks=_watermarks(snapshot, mapping),
        )

    def manifest(self, matched: RestorePlan, fence: Fence) -> Manifest:
        """What the attempt starts from, all its state in the job's own directory."""
        if matched.mapping is not None:
            manifest = self._take_in(matched.snapshot, matched.mapping, fence, matched.own)
        else:
            assert matched.own is not None
            manifest = self._redistribute(matched.own, matched.snapshot, fence)
        watermarks = dict(matched.watermarks)
        drained_by = ""
        if matched.is_over and matched.own is not None:
            drained_by = matched.own.drained_by
        else:  # where event time has ended, it begins anew
            watermarks = {uid: at for uid, at in watermarks.items() if at != END_OF_TIME}
        return msgspec.structs.replace(manifest, watermarks=watermarks, drained_by=drained_by)

    def _check_job(self, snapshot: Snapshot) -> None:
        chosen = self._spec.start.start_from is not None  # else an earlier start was allowed to
        if chosen and snapshot.job != self._spec.name and not self._spec.start.fork:
            raise ConfigurationError(
                f"{snapshot.name} was taken by job {snapshot.job!r}, not by {self._spec.name!r}: "
                "to start another job from it, pass fork=True (turnback run --fork)"
            )
        if self._spec.start.claim_mode is ClaimMode.CLAIM and snapshot.metadata is None and chosen:
            raise ConfigurationError(
                f"{snapshot.name} is a checkpoint: only savepoints can be claimed, because "
                "checkpoints belong to the job that took them"
            )

    def _check_groups(self, snapshot: Snapshot) -> None:
        was = snapshot.max_parallelism
        now = self._plan.max_parallelism
        if was != now:
            raise IncompatibleStateError(
                f"{snapshot.name} of job {snapshot.job!r} has {was} key groups, but the program "
                f"has {now}; call set_max_parallelism({was}), or rewrite it offline for {now} "
                "key groups"
            )

    def _check_pickles(self, snapshot: Snapshot, mapping: StateMapping) -> None:
        """Pickles run code when they are read; whoever wrote the snapshot chose which."""
        names = sorted(
            s.schema.title
            for s in mapping.states.values()
            if "pickled" in repr((s.schema.value, s.schema.sub))
        )
        if names and not self._spec.start.allow_pickled_state:
            raise ConfigurationError(
                f"{snapshot.name} contains pickled objects in {', '.join(names)}: reading them "
                "can run code from the savepoint. If you trust its origin, pass "
                "allow_pickled_state=True (turnback run --allow-pickled-state)"
            )

    def _match(
        self, snapshot: Snapshot, *, resumed: bool
    ) -> tuple[StateMapping, dict[tuple[str, str], str]]:
        """Who gets what, and which states are migrated and how.

        Operators are opened where only that tells which states they ask for.
        """
        spec = self._spec
        renames = spec.start.renames
        allow = spec.start.allow_non_restored_state
        if resumed:  # what an earlier start has renamed or dropped is not there any more
            renames = {old: renames[old] for old in known_names(snapshot, renames)}
            allow = allow if isinstance(allow, bool) else tuple(known_names(snapshot, allow))
        program = program_of(self._plan, self._engine.stream_counts(self._plan))
        mapping = match_program(snapshot, program, renames, allow)
        requested = self._requested_states(mapping, program.open)
        states: dict[str, frozenset[str]] = {uid: frozenset() for uid in program.states}
        for state in requested:
            states[state.id[0]] |= {state.id[1]}
        program = replace(program, states=states, open=frozenset())
        redefined = {state.id for state in requested if state.redefined}
        mapping = match_program(snapshot, program, renames, allow, redefined)
        refuse_data_loss(snapshot, mapping)
        requested = [state for state in requested if state.id not in mapping.anew]
        problems = [state.problem for state in requested if state.problem]
        if problems:
            raise IncompatibleStateError("; ".join(problems))
        return mapping, {state.id: state.migration for state in requested if state.migration}

    def _requested_states(
        self, mapping: StateMapping, open: Collection[str]
    ) -> list[RequestedState]:
        """Which states operators ask for; those that do so in `open` have to be opened for it."""
        stored = {id: state.schema for id, state in mapping.states.items()}
        requested: list[RequestedState] = []
        tasks: list[ProbeTask] = []
        for program, blob in zip(self._programs, self._blobs, strict=True):
            if any(op.uid in open for op in program.level.stateful):
                tasks.append(ProbeTask(blob, stored))
            else:
                requested += [
                    requested_state(op, descriptor, key_schema(op, descriptor), stored)
                    for op in program.level.stateful
                    for descriptor in known_states(op).values()
                ]
        description = f"{self._spec.name}: query operators for their state"
        return [*requested, *chain.from_iterable(self._engine.run_tasks(description, tasks))]

    def _redistribute(self, own: Manifest, snapshot: Snapshot, fence: Fence) -> Manifest:
        """The job's own checkpoint, with operator state where the subtasks of now look for it.

        That is an epoch of its own: it reads nothing, and changes only such state.
        """
        before = {op.uid: op.parallelism for op in own.operators}
        tasks = []
        for op in self._plan.operators():
            if not op.has_operator_state or op.uid not in before:
                continue
            states = tuple(
                snapshot.rows(state)
                for state in snapshot.states
                if state.schema.uid == op.uid
                and is_redistributed(state.schema.kind, before[op.uid], op.parallelism)
            )
            tasks += [
                RedistributeTask(
                    states,
                    Move(
                        before[op.uid], subtask, op.parallelism, own.max_parallelism, own.epoch + 1
                    ),
                    self._storage,
                    fence.attempt,
                    fence.line,
                )
                for subtask in range(op.parallelism if states else 0)
            ]
        if not tasks:
            return own
        files = self._engine.run_tasks(f"{self._spec.name}: redistribute operator state", tasks)
        written = tuple(file for file in files if file is not None)
        return msgspec.structs.replace(own, epoch=own.epoch + 1, state=(*own.state, *written))

    def _take_in(
        self, snapshot: Snapshot, mapping: StateMapping, fence: Fence, own: Manifest | None
    ) -> Manifest:
        stored = {id: snapshot.rows(state) for id, state in mapping.states.items()}
        parallelism = {op.uid: op.parallelism for op in snapshot.operators}
        before = {now: parallelism.get(was, 0) for now, was in mapping.operators.items()}
        waiting = {
            id: tuple(WaitingRows(snapshot.rows(each.state), each.strategy) for each in some)
            for id, some in mapping.waiting.items()
        }
        strategies = {was: now for now, was in mapping.operators.items()}
        now_ms = self._clock.now_ms()
        tasks = {
            intake_task(program.level.index, partition): IntakeTask(
                blob,
                partition,
                stored,
                self._storage,
                fence.attempt,
                fence.line,
                snapshot.epoch,
                before,
                now_ms,
                _entries(program, partition, stored),
                waiting,
                strategies,
            )
            for program, blob in zip(self._programs, self._blobs, strict=True)
            if program.level.stateful
            for partition in range(program.level.parallelism or 0)
        }
        weights = {name: task.entries for name, task in tasks.items()}
        self._restoring.begin(f"importing {snapshot.name}", fence.attempt, weights)
        description = f"{self._spec.name}: import {snapshot.name}"
        results = self._engine.run_tasks(description, list(tasks.values()))
        self._restoring.end()
        schemas = {schema.id: schema for _, some in results for schema in some}
        return Manifest(
            job=fence.job,
            job_id=fence.job_id,
            number=own.number if own else 0,
            attempt=fence.attempt,
            epoch=snapshot.epoch,
            created_ms=now_ms,
            trigger="intake",
            parent=own.parent if own else None,
            max_parallelism=snapshot.max_parallelism,
            sources=self._positions(snapshot, mapping, fence, copied=own is None),
            state=tuple(file for files, _ in results for file in files),
            schemas=tuple(schemas.values()),
            operators=(),
            transactions={},  # what it has promised is committed before it is taken in
            watermarks={},
        )

    def _positions(
        self, snapshot: Snapshot, mapping: StateMapping, fence: Fence, *, copied: bool
    ) -> dict[str, SourcePosition]:
        """The positions under the names sources have now; their logs in the job's own directory."""
        old_uids = {op.uid for op in snapshot.operators}
        new_uids = {source.uid for source in self._plan.sources}
        positions: dict[str, SourcePosition] = {}
        for leaf in stream_names(self._engine.stream_counts(self._plan)):
            now = source_uid(leaf, new_uids)
            before = mapping.sources.get(now)
            if before is None or now in mapping.rewound_sources:
                continue
            for old, position in snapshot.sources.items():
                same_input = old.removeprefix(before) == leaf.removeprefix(now)
                if source_uid(old, old_uids) == before and same_input:
                    positions[leaf] = position
        if not copied:
            return positions
        return {
            leaf: copy_source_log(
                position,
                snapshot.storage,
                self._storage,
                lambda log: f"offsets/{fence.attempt}/{log.name}",
            )
            for leaf, position in positions.items()
        }


def _entries(program: LevelProgram, partition: int, stored: Mapping[StateId, StoredRows]) -> float:
    """About how many entries a partition gets of what is stored."""
    ranges = program.group_ranges(partition)
    total = 0.0
    for (uid, _), state in stored.items():
        first, last = ranges.get(uid, (0, -1))
        for file in state.held_by():
            common = min(last, file.last_group) - max(first, file.first_group) + 1
            total += file.rows * max(0, common) / (file.last_group - file.first_group + 1)
    return total


def _fits_as_it_is(own: Manifest, mapping: StateMapping) -> bool:
    """Whether the files of the job's own checkpoint can be used as they are.

    Not if any of their rows belong to state that is dropped: an operator or a state of the same
    name that is added later would find them.
    """
    renamed = any(id != stored.id for id, stored in mapping.states.items())
    moved = any(now != before for now, before in mapping.sources.items())
    written = {uid for file in own.state for uid in file.operators}
    dropped = mapping.dropped or mapping.stranded or written - {s.uid for s in own.schemas}
    return not (renamed or moved or dropped or mapping.rewound_sources or mapping.waiting)


def _watermarks(snapshot: Snapshot, mapping: StateMapping) -> dict[str, int]:
    """The watermarks of a snapshot under the names that operators and sources have now.

    Those of a strategy's partitions are under ``STRATEGY#PARTITION``. What an operator without a
    counterpart has reached belongs to nobody any more. One of the snapshot without a watermark has
    not got anywhere, also if a stream for which it has waited is gone now.
    """
    now = {was: now for now, was in mapping.operators.items()}
    partitions = {whole_source(was): whole_source(now) for was, now in now.items()}
    uids = sorted(snapshot.uids(), key=len, reverse=True)
    renamed = dict.fromkeys(mapping.operators, MIN_TIME)
    for name, watermark in snapshot.document.watermarks.items():
        owner = next((uid for uid in uids if name == uid or name.startswith(f"{uid}#")), name)
        partition = name.removeprefix(owner).removeprefix("#")
        if owner not in uids:
            renamed[name] = watermark
        elif owner in now:
            new = partitions.get(partition, partition)
            renamed[f"{now[owner]}#{new}" if partition else now[owner]] = watermark
    return renamed


def _log_changes(
    snapshot: Snapshot, mapping: StateMapping, migrations: Mapping[tuple[str, str], str]
) -> None:
    """Log what of a snapshot does not simply go on."""
    name = snapshot.name
    if snapshot.drained:
        _LOG.warning("%s was drained: its event time is at its end", name)
    for uid in mapping.lost_sources:
        _LOG.warning("%s has the position of source %r, which no longer exists", name, uid)
    for uid, state in sorted(mapping.anew):
        _LOG.warning("state %r of operator %r starts empty, as allowed", state, uid)
    for uid in mapping.rewound_sources:
        _LOG.warning(
            "source %r reads different streams than in %s; it starts at its initial position",
            uid,
            name,
        )
    for uid in mapping.dropped_sinks:
        _LOG.warning("in-doubt output of sink %r in %s is dropped, as allowed", uid, name)
    for (uid, state), why in migrations.items():
        _LOG.info("state %r of operator %r is migrated: %s", state, uid, why)


def _check_sources(
    plan: Plan, job: str, snapshot: Snapshot | None, mapping: StateMapping | None
) -> None:
    """Refuse sources that cannot be read, before anything is written.

    `snapshot` is what the job goes on from, and `mapping` which source gets which position; None if
    each gets its own.
    """
    for source in plan.sources:
        before: str | None = source.uid
        if mapping is not None:
            before = mapping.sources.get(source.uid)
            if source.uid in mapping.rewound_sources:
                before = None
        position = snapshot.sources.get(before) if snapshot and before else None
        name = f"source {source.uid!r} of job {job!r}"
        for note in check_position(source, name, position):
            _LOG.warning("%s: %s", name, note)
