from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.kafka import KafkaBroker
from turnback.sinks.base import CommitterContext, WriterContext, directory_digest
from turnback.state.files import StorageRef
from turnback.values.typeinfo import TypeInfo, Types

_POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    """A topic with some partitions."""
    return kafka.create_topic(3)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a job that has none yet."""
    made = tmp_path / "likes"
    made.mkdir()
    return made


@pytest.fixture
def task(tmp_path: Path) -> Callable[..., WriterContext]:
    """Makes the context of a task."""

    def make(type: TypeInfo = _POSTS, **changes: Any) -> WriterContext:
        values: dict[str, Any] = {
            "job": "likes",
            "job_id": "id-1",
            "uid": "out",
            "attempt": 3,
            "epoch": 7,
            "partition": 0,
            "task_attempt_id": 40,
            "storage": StorageRef((tmp_path / "likes").as_uri()),
            "directory_id": directory_digest((tmp_path / "likes").as_uri()),
        }
        return WriterContext(**{**values, **changes}, type=type)

    return make


@pytest.fixture
def driver(tmp_path: Path) -> Callable[..., CommitterContext]:
    """Makes the context of a driver."""

    def make(job: str = "likes", **changes: Any) -> CommitterContext:
        directory = (tmp_path / job).as_uri()
        values: dict[str, Any] = {
            "job_id": "id-1" if job == "likes" else f"id-of-{job}",
            "uid": "out",
            "attempt": 3,
            "type": _POSTS,
            "job_directory": directory,
            "storage": StorageRef(directory),
        }
        return CommitterContext(**{"job": job, **values, **changes})

    return make
