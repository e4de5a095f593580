from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from turnback.api.environment import set_up_logging


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    logger = logging.getLogger("turnback")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield
    logger.level, logger.propagate = before[:2]
    logger.handlers[:] = before[2]


def test_json_lines_hold_the_message_and_the_error() -> None:
    out = io.StringIO()
    set_up_logging("info", "json", out)
    logger = logging.getLogger("turnback.somewhere")
    logger.debug("not this")
    logger.warning("job %r\nis slow", "x")
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["message"]) == ("WARNING", "job 'x'\nis slow")
    assert first["logger"] == "turnback.somewhere"
    assert first["time"].endswith("+00:00")
    assert "ValueError: no" in second["error"]


def test_setting_up_twice_prints_once() -> None:
    out = io.StringIO()
    set_up_logging("info", "text", io.StringIO())
    set_up_logging("warning", "text", out)
    logging.getLogger("turnback").info("quiet")
    logging.getLogger("turnback").warning("loud")
    assert out.getvalue().count("loud") == 1
    assert "quiet" not in out.getvalue()
