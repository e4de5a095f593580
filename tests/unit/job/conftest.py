"""A server that events are posted to."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from receiver import Receiver

from turnback.job import alerts as hooks_module


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "_PAUSES_S", (0.0, 0.0))
