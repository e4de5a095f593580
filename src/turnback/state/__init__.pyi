from .list_and_map import ListState, MapState
from .subtasks import BroadcastState
from .values import AggregatingState, ReducingState, ValueState

__all__ = [
    "AggregatingState",
    "BroadcastState",
    "ListState",
    "MapState",
    "ReducingState",
    "ValueState",
]
