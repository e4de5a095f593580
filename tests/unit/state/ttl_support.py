"""State with a time to live of ten seconds, and what can be seen of it in files and stores."""

from __future__ import annotations

from contextlib import closing

from pyarrow import ipc

from turnback import StateTtlConfig, Time
from turnback.functions.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from turnback.state.delta import open_delta
from turnback.values.typeinfo import Types

TTL = 10_000
LONG = "long key " * 40


def config(**how):
    builder = StateTtlConfig.new_builder(Time.seconds(10))
    if how.get("on_read"):
        builder = builder.update_ttl_on_read_and_write()
    if how.get("shows"):
        builder = builder.return_expired_if_not_cleaned_up()
    if how.get("quiet"):
        builder = builder.disable_cleanup_in_background()
    return builder.build()


def value(**how):
    return ValueStateDescriptor("v", Types.STRING()).enable_time_to_live(config(**how))


def listing(**how):
    return ListStateDescriptor("l", Types.STRING()).enable_time_to_live(config(**how))


def mapping(**how):
    return MapStateDescriptor("m", Types.STRING(), Types.LONG()).enable_time_to_live(config(**how))


def elsewhere(j, place="elsewhere"):
    """Look at the state from another machine, whose local store is empty."""
    j.root = j.root.with_name(place)
    return j


def entries(j):
    """How many entries the local store has."""
    backend, _ = j.backend()
    with closing(j.home(backend)) as home:
        return sum(1 for where, _ in home.store.scan(b"") if len(where) > 8)


def rows(j, file):
    delta = open_delta(file, j.read)
    return [row for batch in delta.batches() for row in batch().to_pylist()]


def version(j):
    metadata = ipc.open_file(j.read(j.files[0])).schema.metadata
    return metadata[b"turnback.state.format"]


def at(j, now, key, step):
    j.now_ms = now
    return j.one(key, step)
