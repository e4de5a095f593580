"""What holds for all tests: where their files are, Ctrl-C, and one browser."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Tests write thousands of files, each synced to disk. No test switches the machine off, so memory
# will do where there is enough of it.
_MEMORY = "/dev/shm"
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = f"{_MEMORY}/turnback-tests-{os.getuid()}"
    os.makedirs(os.environ["TMPDIR"], mode=0o700, exist_ok=True)  # noqa: PTH103
    tempfile.tempdir = None

# `nohup make test &` and many CI runners start the tests with Ctrl-C ignored. Child processes
# inherit that, and those that a test presses Ctrl-C for would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser that all tests share."""
    from services.chromium import chromium_browser

    with chromium_browser() as browser:
        yield browser
