"""Compaction of the tables that a job writes, whether it runs or not.

It is done here and not by the job: a commit that changes no row is safe beside the job's own, and a
large one must not take memory and time from its driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout

import msgspec

from turnback.connectors.registry import sink_from_description
from turnback.connectors.tables.files import TABLE_KINDS
from turnback.connectors.tables.sink import TableSink
from turnback.driver.sinks import SinkRecord, committer_context, recorded_sinks
from turnback.errors import ConfigurationError, JobNotFoundError
from turnback.sinks.base import Sink
from turnback.views.job import Job
from turnback.views.model import View


class CompactedTable(View, frozen=True, kw_only=True):
    """A table that was compacted, or would be; see `Compaction`."""

    sink: str
    kind: str
    table: str
    files_before: int
    files_after: int
    joined: int
    bytes: int
    version: str


class CompactedTables(View, frozen=True, kw_only=True):
    """What was done; `dry_run` if nothing was."""

    dry_run: bool
    tables: tuple[CompactedTable, ...]


def compact(
    job: Job,
    uid: str | None = None,
    sinks: Mapping[str, Sink] | None = None,
    *,
    dry_run: bool = False,
    on_table: Callable[[str], None] = lambda uid: None,
) -> CompactedTables:
    """Join small files of the tables of a job, or of one sink.

    Args:
        job: It may be running.
        uid: Of the sink; by default all sinks that write tables.
        sinks: Those that only the program can make, by uid.
        dry_run: Whether to say only what would be done.
        on_table: Called with each uid before its table is compacted.

    Raises:
        ConfigurationError: There is no such sink, it writes no table, or only the program knows it.
        SinkError: A table cannot be compacted.
    """
    info = job.directory.info()
    if info is None:
        raise JobNotFoundError(f"job {job.name!r} was never started: it has no tables")
    tables = _tables(job, uid, dict(sinks or {}))
    done = []
    for name, sink in tables.items():
        on_table(name)
        ctx = committer_context(job.directory, info.job_id, name, options=job.options)
        with redirect_stdout(sys.stderr):
            result = sink.compact(ctx, dry_run=dry_run)
        fields = msgspec.structs.asdict(result)
        done.append(CompactedTable(sink=name, kind=sink.kind, table=sink.place, **fields))
    return CompactedTables(dry_run=dry_run, tables=tuple(done))


def _tables(job: Job, uid: str | None, given: dict[str, Sink]) -> dict[str, TableSink]:
    """The sinks to compact, all of them usable."""
    records = recorded_sinks(job.directory)
    known = {*records, *given}
    if uid is not None and uid not in known:
        raise ConfigurationError(
            f"job {job.name!r} has no sink {uid!r}; available: "
            f"{', '.join(map(repr, sorted(known))) or 'none yet'}"
        )
    if uid is not None:
        return {uid: _table(job, uid, records.get(uid), given.get(uid))}
    kinds = {name: record.description.get("kind") for name, record in records.items()}
    names = sorted(n for n in known if n in given and isinstance(given[n], TableSink)) or sorted(
        name for name, kind in kinds.items() if kind in TABLE_KINDS
    )
    if not names:
        raise ConfigurationError(f"job {job.name!r} writes no Delta or Iceberg table")
    return {name: _table(job, name, records.get(name), given.get(name)) for name in names}


def _table(job: Job, uid: str, record: SinkRecord | None, given: Sink | None) -> TableSink:
    kind = record.description.get("kind") if record is not None else type(given).__name__
    if given is None and record is not None and kind in TABLE_KINDS:
        given = sink_from_description(record.description)
        if given is None:
            raise ConfigurationError(
                f"only the program defines the catalog of sink {uid!r} of job {job.name!r}: "
                "specify the program with --script"
            )
    if not isinstance(given, TableSink):
        raise ConfigurationError(
            f"sink {uid!r} of job {job.name!r} is of kind {kind!r}: only Delta and Iceberg tables "
            "can be compacted"
        )
    reason = given.unusable_here()
    if reason is not None:
        raise ConfigurationError(f"sink {uid!r} of job {job.name!r} {reason}")
    return given
