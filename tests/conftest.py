"""Puts this directory on the path, for the support modules in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser that all tests share."""
    from services.chromium import chromium_browser

    with chromium_browser() as browser:
        yield browser
