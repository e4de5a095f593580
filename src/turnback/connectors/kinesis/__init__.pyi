from .source import KinesisOffsetsInitializer, KinesisSource

__all__ = [
    "KinesisOffsetsInitializer",
    "KinesisSource",
]
