"""What the state of a job holds for one key, from any Python program and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from os import PathLike
from typing import Any

from turnback.api.arguments import path_text
from turnback.config.configuration import Configuration, job_root, location
from turnback.config.configuration import storage_options as configured_options
from turnback.core.clock import SystemClock
from turnback.core.ids import segment_name
from turnback.errors import JobNotFoundError
from turnback.job.directory import JobDirectory
from turnback.snapshot import lookup
from turnback.state.files import StorageRef
from turnback.state.schema import LIST_KINDS, StateSchema
from turnback.storage.open import open_storage


@dataclass(frozen=True)
class KeyState:
    """What a state holds for a key.

    Attributes:
        found: Whether there is anything.
        value: Of value and reducing state the value, of aggregating state the accumulator; None if
            there is none. Of a list its elements, of any other state a dict.
        next: What to pass as `after` to get more of a list or map; None at the end.
        snapshot: Where it was read: chk-7, or the directory of the savepoint the job began with.
        epoch: The last epoch in it.
        created: When it was taken, in UTC.
    """

    found: bool
    value: Any
    next: str | None
    snapshot: str
    epoch: int
    created: datetime


def look_up(
    job: str,
    uid: str,
    state: str,
    key: Any,
    *,
    root: str | PathLike[str] | None = None,
    after: str | None = None,
    limit: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> KeyState:
    """Read the value of a state for a key, while the job runs or after it has ended.

    The value is that of the newest checkpoint, from which the job would resume if it failed now.
    Only files are read, so the job is not affected, and Spark is not needed. Expired values are not
    returned.

    Args:
        job: Name of the job.
        uid: The operator.
        state: Name of the state.
        key: The key as in the job: a value, or a tuple for several columns.
        root: The directory of all jobs; by default as configured.
        after: The `next` of the previous page. Pages are from one checkpoint as long as the job
            retains it; later pages continue in a newer one, after the last entry of the previous
            page.
        limit: The most list elements or map entries to return; all by default.
        storage_options: Credentials and endpoints of object stores; by default as configured.

    Raises:
        JobNotFoundError: There is no such job.
        StateError: There is no such operator or state.
        ConfigurationError: The key has another type, or another argument cannot be used.
        CheckpointNotFoundError: The job has taken no checkpoint yet.
        CorruptFileError: A file is damaged or missing.
    """
    configuration = Configuration.load()
    jobs_root = job_root(configuration) if root is None else location(path_text("root", root))
    options = dict(
        configured_options(configuration) if storage_options is None else storage_options
    )
    directory = JobDirectory.locate(jobs_root, job, options)
    if directory.info() is None:
        raise _missing(job, jobs_root, options)
    found = lookup.look_up(
        directory,
        StorageRef(directory.storage.uri, options),
        uid,
        state,
        lambda schema: key,
        SystemClock().now_ms(),
        after,
        limit,
    )
    read = value_reader(found.schema)
    return KeyState(
        found=bool(len(found.rows)),
        value=read(found.rows["sub"].to_pylist(), found.rows["value"].to_pylist()),
        next=None if found.next is None else found.next.text(),
        snapshot=found.snapshot.name,
        epoch=found.snapshot.epoch,
        created=datetime.fromtimestamp(found.snapshot.created_ms / 1000, UTC),
    )


def value_reader(schema: StateSchema) -> Callable[[Sequence[Any], Sequence[bytes]], Any]:
    """What makes a value, a list or a dict of the map keys and values that are stored of a key."""
    from turnback.state.backend import sub_codec
    from turnback.state.expiry import TIME_BYTES
    from turnback.values.serializer import Serializer
    from turnback.values.typeinfo import type_from_descriptor

    decode = Serializer(type_from_descriptor(schema.value)).decode
    start = 0 if schema.ttl is None else TIME_BYTES
    sub = None if schema.sub is None else sub_codec(type_from_descriptor(schema.sub)).decode

    def read(subs: Sequence[Any], data: Sequence[bytes]) -> Any:
        values = [decode(each[start:]) for each in data]
        if sub is not None:
            return dict(zip(map(sub, subs), values, strict=True))
        if schema.kind in LIST_KINDS:
            return values
        return values[0] if values else None

    return read


def _missing(job: str, root: str, options: dict[str, str]) -> JobNotFoundError:
    names = [segment_name(each) or each for each in open_storage(root, options).folders()]
    near = get_close_matches(job, names, 1)
    there = ", ".join(map(repr, sorted(names)[:10])) or "none"
    hint = f"did you mean {near[0]!r}?" if near else f"available jobs: {there}"
    return JobNotFoundError(f"there is no job {job!r} in {root}; {hint}")
