from __future__ import annotations

from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from unit.web.web_support import TOKEN, served

_PATIENCE_MS = 60_000  # a busy machine is not a failure
expect.set_options(timeout=_PATIENCE_MS)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Only for looking; a test that changes something makes its own."""
    from page_support import World

    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def address(world):
    with served(world.jobs, runs_dir=world.runs) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def look(chromium, address):
    """Open browsers as asked; in the end, none of them may have complained."""
    from page_support import Looker

    with ExitStack() as stack:
        lookers = []

        def start(base: str = address, token: bool = True, **settings) -> Looker:
            # Without a graphics card, whatever moves without end keeps a core busy.
            usual = {"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce"}
            context = stack.enter_context(chromium.new_context(**{**usual, **settings}))
            context.set_default_timeout(_PATIENCE_MS)
            looker = Looker(context.new_page(), base)
            lookers.append(looker)
            if token:
                looker.page.goto(f"{base}/?token={TOKEN}")
            return looker

        yield start
        assert [looker.complaints for looker in lookers] == [[] for _ in lookers]
