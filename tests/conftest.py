"""Puts this directory on the path, for the support modules in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# `nohup make test &` and many CI runners start the tests with Ctrl-C ignored. Child processes
# inherit that, and those that a test presses Ctrl-C for would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is not a failure. `make check` tries few random examples, all other runs many.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=15)
settings.load_profile("quick" if os.environ.get("TURNBACK_QUICK") == "1" else "full")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser that all tests share."""
    from services.chromium import chromium_browser

    with chromium_browser() as browser:
        yield browser
