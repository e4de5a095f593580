"""Sinks by kind: those that can settle their transactions without the program.

A sink of another package is found by an entry point of the group `turnback.sinks`, which has the
name of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points

import msgspec

from turnback.connectors.files.staging import KIND as FILE
from turnback.connectors.files.staging import decode_files, explain_files
from turnback.connectors.tables.files import TABLE_KINDS, TableTransaction
from turnback.errors import SinkError
from turnback.sinks.base import CommitterContext, Sink, TransactionInfo, handle_kind, sink_label
from turnback.sinks.memory import explain_inline
from turnback.sinks.staged_elements import KIND as STAGED
from turnback.sinks.staged_elements import StagedFiles, StagedTask

_GROUP = "turnback.sinks"
_SINKS = {
    "delta": "turnback.connectors.tables.delta:DeltaSink",
    "file": "turnback.connectors.files.sink:FileSink",
    "iceberg": "turnback.connectors.tables.iceberg:IcebergSink",
    "kafka": "turnback.connectors.kafka.sink:KafkaSink",
    "mysql": "turnback.connectors.sql.mysql:MySqlSink",
    "postgres": "turnback.connectors.sql.postgres:PostgresSink",
    "print": "turnback.sinks.memory:PrintSink",
}
"""By `kind` of their description: module and class, loaded when such a sink is needed."""
_INLINE = ("collect", "discard", "print")
IN_MEMORY = ("collect", "discard")
"""Sinks whose output ends in the memory of the driver: there is nothing to settle elsewhere."""


def sink_from_description(description: Mapping[str, str]) -> Sink | None:
    """Return a sink that settles what the one with this description has prepared.

    None if only the program can make it, or if its output ends in the driver's memory. Raises
    `ConfigurationError` if the description cannot be used.
    """
    sink = _sink_of_kind(description.get("kind", ""))
    return None if sink is None else sink.from_description(description)


def _sink_of_kind(kind: str) -> type[Sink] | None:
    found: type[Sink] | None = None
    if kind in _SINKS:
        module, _, name = _SINKS[kind].partition(":")
        found = getattr(import_module(module), name)
    else:
        for point in entry_points(group=_GROUP, name=kind):
            found = point.load()
    return found


def explain_handle(
    transaction: bytes, ctx: CommitterContext, description: Mapping[str, str]
) -> TransactionInfo:
    """Describe a transaction of a sink that is not to be had, as far as its bytes tell."""
    kind = handle_kind(transaction)
    sink = sink_label(ctx.job, ctx.uid)
    if kind is None:
        raise SinkError(f"{sink}: cannot read a prepared transaction")
    if kind in _INLINE:
        return explain_inline(kind, transaction, ctx)
    if kind == FILE:
        return explain_files(decode_files(transaction, ctx), None)
    if kind == STAGED:
        info = StagedTask.decode(transaction, sink).explain(ctx)
        topic = description.get("topics") or description.get("topic")
        return info if topic is None else msgspec.structs.replace(info, waiting=_readers(topic))
    if kind in TABLE_KINDS:
        place = description.get("path") or f"a {kind} table"
        return TableTransaction.decode(kind, transaction, ctx).explain(place, ctx)
    what = f"transaction of a {description.get('kind') or kind} sink"
    return TransactionInfo(what=what, bytes=len(transaction))


def staged_orphans(ctx: CommitterContext) -> list[TransactionInfo]:
    """What a sink that is not to be had has staged in the job directory."""
    return StagedFiles(ctx).list_orphans(ctx.uid)


def _readers(topics: str) -> str:
    # A transaction of Kafka is open only while an epoch is published, and only Kafka knows.
    names = ", ".join(map(repr, topics.split(",")))
    return f"read_committed readers of topic {names}, if the driver died while it published"
