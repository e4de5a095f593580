"""What a job under test has written and remembers, as plain Python values."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from turnback.checkpoint.log import CheckpointLog
from turnback.core.errors import ConfigurationError, StateError
from turnback.job.directory import JobDirectory
from turnback.program.graph import StreamGraph
from turnback.sinks.memory import CollectSink
from turnback.snapshot.snapshot import Snapshot
from turnback.state.backend import sub_codec
from turnback.state.files import StorageRef
from turnback.types.keys import KeyCodec
from turnback.types.serializer import Serializer
from turnback.types.typeinfo import type_from_descriptor


class Outputs:
    """Collects what would be written, in place of the program's sinks; it outlives drivers."""

    def __init__(self, real: Collection[str]) -> None:
        self._real = frozenset(real)
        self._sinks: dict[str, CollectSink] = {}

    def collect_from(self, graph: StreamGraph) -> None:
        """Put a collecting sink in the place of each sink of a program."""
        uids = {node.uid for node in graph.sinks()}
        for uid in self._real - uids:
            raise unknown("sink", uid, [known for known in uids if known])
        for number, node in enumerate(graph.sinks()):
            if node.uid not in self._real:
                uid = node.uid or f"sink {number}"
                node.function = self._sinks.setdefault(uid, CollectSink())

    def of(self, uid: str) -> list[Any]:
        if uid not in self._sinks:
            raise unknown("sink", uid, self._sinks)
        return self._sinks[uid].results


def newest_state(directory: JobDirectory, uid: str, name: str) -> dict[Any, Any]:
    """A state in the newest checkpoint of a job, by key.

    Raises:
        StateError: There is no such state, or no checkpoint yet.
    """
    manifest = CheckpointLog(directory.storage).latest()
    if manifest is None:
        raise StateError(f"job {directory.name!r} has no checkpoint yet; push something first")
    snapshot = Snapshot(manifest, StorageRef(directory.storage.uri))
    state = snapshot.state(uid, name)
    schema = state.schema
    key_of = KeyCodec(schema.key.type_infos(), by_columns=schema.key.columns).decode
    value_of = Serializer(type_from_descriptor(schema.value)).decode
    sub_of = sub_codec(type_from_descriptor(schema.sub)).decode if schema.kind == "map" else None
    rows = [
        row
        for table in snapshot.rows(state).rows(0, snapshot.max_parallelism - 1)
        for row in table.select(["key", "sub", "value"]).to_pylist()
    ]
    found: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda row: row["sub"] or b""):  # elements of lists in order
        key, value = key_of(row["key"]), value_of(row["value"])
        if sub_of is not None:
            found.setdefault(key, {})[sub_of(row["sub"])] = value
        elif schema.kind == "list":
            found.setdefault(key, []).append(value)
        else:
            found[key] = value
    return found


def unknown(what: str, given: object, names: Collection[str]) -> ConfigurationError:
    """The error for a name that is not there, with the nearest one that is."""
    near = get_close_matches(str(given), names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names))}"
    return ConfigurationError(f"there is no {what} {given!r}; {hint if names else 'there is none'}")
