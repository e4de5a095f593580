"""Keys that are Spark's own."""

from __future__ import annotations

import re

from turnback.coordinator.option import Option, text

SPARK_PREFIX = "spark."
SPARK_DOC = (
    "Any setting of Spark, for the session Turnback makes; a running session is used as it is."
)

# Spark's own `spark.redaction.regex`, and what people call such things.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def spark_option(key: str) -> Option:
    """The option for a key of Spark."""
    return Option(key, text, SPARK_DOC, secret=_SECRET.search(key) is not None)
