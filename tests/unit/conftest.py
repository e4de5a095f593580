from collections.abc import Callable
from typing import Any

import pytest
from sink_support import POSTS

from turnback.sinks.base import CommitterContext, WriterContext
from turnback.values.typeinfo import TypeInfo


@pytest.fixture
def writer_ctx() -> Callable[..., WriterContext]:
    def make(type: TypeInfo = POSTS, **changes: Any) -> WriterContext:
        values: dict[str, Any] = {
            "job": "likes",
            "job_id": "id-1",
            "uid": "out",
            "attempt": 3,
            "epoch": 7,
            "partition": 0,
            "task_attempt_id": 40,
        }
        return WriterContext(**{**values, **changes}, type=type)

    return make


@pytest.fixture
def committer_ctx() -> Callable[..., CommitterContext]:
    def make(**changes: Any) -> CommitterContext:
        values: dict[str, Any] = {"job": "likes", "job_id": "id-1", "uid": "out", "attempt": 3}
        return CommitterContext(**{**values, **changes})

    return make
