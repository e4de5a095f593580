"""A job with its directory in an object store and partitioned output: killed, saved and forked."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.object_stores import OBJECT_STORES, ObjectServer
from systems.stored_job import EXPECTED, FILES, Place, write_source
from tiers import with_examples
from turnback.config.options import from_storage_options
from turnback.job.directory import JobDirectory
from verification import verify


@pytest.fixture(scope="module", params=with_examples(OBJECT_STORES, ["azure"]))
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ObjectServer]:
    with OBJECT_STORES[request.param](tmp_path_factory.mktemp("server")) as running:
        running.create_bucket("turnback")
        yield running


@pytest.fixture
def place(server: ObjectServer, tmp_path: Path, java: str) -> Iterator[Place]:
    keys = from_storage_options(server.options)
    environment = {f"TURNBACK_CONF_{re.sub('[.-]', '_', k).upper()}": v for k, v in keys.items()}
    root = f"{server.bucket_uri('turnback')}/{uuid.uuid4().hex}/jobs"
    source = write_source(tmp_path / "in", range(FILES - 4))
    made = Place(root, source, tmp_path, java, environment, partition_by=["key"])
    yield made
    made.close()


def test_a_job_is_exact_through_a_kill_a_savepoint_and_a_fork(
    place: Place, server: ObjectServer, tmp_path: Path
) -> None:
    first = place.start()
    first.until_running(lambda: bool(place.rows()), "write anything")
    first.kill()
    savepoint = f"{place.root}-savepoints/first"
    saving = place.start(save=savepoint)
    assert saving.wait() == 0, saving.errors
    saved = place.rows()
    assert 0 < len(saved) < len(EXPECTED)
    write_source(tmp_path / "in", range(FILES - 4, FILES))
    fork = place.start(fork=savepoint, output="forked")
    assert fork.wait() == 0, fork.errors
    assert sorted(saved + place.rows("forked")) == EXPECTED
    assert place.rows() == saved
    assert {path.name for path in (tmp_path / "out").glob("[!.]*")} == {
        f"key=k{n}" for n in range(4)
    }
    for job in ("numbers", "forked"):
        assert verify(JobDirectory.locate(place.root, job, server.options).storage) == []
