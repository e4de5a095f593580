from .aggregating import AggregatingState
from .compaction import Merge, plan_merges
from .delta import BuiltDelta, Delta, DeltaBuilder, read_delta, write_delta
from .file import StateFile, in_order, joined_lineage
from .home import Home, open_home
from .keyed import KeyedStateBackend
from .list import ListState
from .map import MapState
from .merging import live_rows, merge
from .reducing import ReducingState
from .rocksdb import RocksOptions
from .schema import StateSchema
from .sharing import share
from .store import LocalStore
from .value import ValueState

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
