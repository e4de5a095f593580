from .sink import FileSink

__all__ = [
    "FileSink",
]
