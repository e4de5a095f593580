from .delta import DeltaSink
from .iceberg import IcebergSink

__all__ = [
    "DeltaSink",
    "IcebergSink",
]
