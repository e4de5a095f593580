from .batch import Batch
from .clock import Clock, ManualClock, SystemClock
from .duration import format_duration, parse_duration, parse_size
from .ids import check_job_name, check_state_name, check_uid, path_segment
from .keys import KeyCodec, group_range, partition_of
from .row import Row, row_class
from .serde import Serializer, serializer_for
from .typehints import as_type
from .types import RowTypeInfo, TypeInfo, Types

__all__ = [
    "Batch",
    "Clock",
    "KeyCodec",
    "ManualClock",
    "Row",
    "RowTypeInfo",
    "Serializer",
    "SystemClock",
    "TypeInfo",
    "Types",
    "as_type",
    "check_job_name",
    "check_state_name",
    "check_uid",
    "format_duration",
    "group_range",
    "parse_duration",
    "parse_size",
    "partition_of",
    "path_segment",
    "row_class",
    "serializer_for",
]
