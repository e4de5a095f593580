"""What Turnback has to say of a job, as lines for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, thread, message, and error if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(level: str, format: str, stream: TextIO | None = None) -> None:
    """Print what Turnback logs, in this process.

    The program's own logging is left alone: this is about the logger "turnback" only, and is done
    once.

    Args:
        level: The least level that is printed.
        format: "text" or "json".
        stream: Where to; by default stderr.
    """
    logger = logging.getLogger("turnback")
    logger.setLevel(level.upper())
    for handler in logger.handlers:
        if isinstance(handler, _Handler):
            logger.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else logging.Formatter(_TEXT))
    logger.addHandler(handler)
    logger.propagate = False


class _Handler(logging.StreamHandler[TextIO]):
    """Told apart from handlers that the program has set up."""
