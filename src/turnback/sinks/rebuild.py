"""Makes sinks anew from what they said of themselves."""

from __future__ import annotations

from collections.abc import Mapping

from turnback.core.errors import ConfigurationError
from turnback.sinks.base import Sink
from turnback.sinks.files import FileSink
from turnback.sinks.memory import PrintSink
from turnback.sinks.staging import KIND as FILE


def rebuilt(description: Mapping[str, str]) -> Sink | None:
    """Return a sink that settles what the described one has prepared.

    Args:
        description: What `Sink.describe` returned.

    Returns:
        The sink; None if only the program can make it, or if it ends in the driver's memory.

    Raises:
        ConfigurationError: The description cannot be used.
    """
    kind = description.get("kind")
    if kind == FILE:
        return _file(description)
    if kind == PrintSink.kind:
        return PrintSink(description.get("prefix", ""))
    return None


def _file(description: Mapping[str, str]) -> FileSink:
    path = description.get("path")
    if path is None:
        raise ConfigurationError("the description of a file sink does not say where its files are")
    return FileSink(
        path,
        description.get("format", "parquet"),
        prefix=description.get("prefix", "part"),
        header=description.get("header", "true") == "true",
    )
