"""Types, rows, batches, keys and bytes: what everything else is built on."""

from turnback.core.batch import Batch
from turnback.core.clock import Clock, ManualClock, SystemClock
from turnback.core.duration import format_duration, parse_duration, parse_size
from turnback.core.ids import check_job_name, check_state_name, check_uid, path_segment
from turnback.core.keys import KeyCodec, group_range, partition_of
from turnback.core.row import Row, row_class
from turnback.core.serde import Serializer, serializer_for
from turnback.core.typehints import as_type
from turnback.core.types import RowTypeInfo, TypeInfo, Types

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
