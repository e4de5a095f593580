from turnback.state.aggregating import AggregatingState
from turnback.state.compaction import Merge, plan_merges
from turnback.state.delta import BuiltDelta, Delta, DeltaBuilder, read_delta, write_delta
from turnback.state.file import StateFile, in_order, joined_lineage
from turnback.state.home import Home, open_home
from turnback.state.keyed import KeyedStateBackend
from turnback.state.list import ListState
from turnback.state.map import MapState
from turnback.state.merge import live_rows, merge
from turnback.state.reducing import ReducingState
from turnback.state.rocksdb import RocksOptions
from turnback.state.schema import StateSchema
from turnback.state.share import share
from turnback.state.store import LocalStore
from turnback.state.value import ValueState

__all__ = [
    "AggregatingState",
    "BuiltDelta",
    "Delta",
    "DeltaBuilder",
    "Home",
    "KeyedStateBackend",
    "ListState",
    "LocalStore",
    "MapState",
    "Merge",
    "ReducingState",
    "RocksOptions",
    "StateFile",
    "StateSchema",
    "ValueState",
    "in_order",
    "joined_lineage",
    "live_rows",
    "merge",
    "open_home",
    "plan_merges",
    "read_delta",
    "share",
    "write_delta",
]
