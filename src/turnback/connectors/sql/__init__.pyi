from .mysql import MySqlSink
from .postgres import PostgresSink

__all__ = [
    "MySqlSink",
    "PostgresSink",
]
