"""A checkpoint is dropped by its job while somebody looks into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_job import FakeJob, schema
from turnback.core.errors import CheckpointNotFoundError, NotFoundError
from turnback.inspect import browse, compare
from turnback.state.files import storage_of

TOTAL = schema()


def test_one_that_was_dropped_is_told_from_one_that_is_damaged(tmp_path: Path) -> None:
    job = FakeJob(str(tmp_path))
    job.attempt()
    first = job.checkpoint((TOTAL, {"ann": 1}))
    second = job.checkpoint((TOTAL, {"ann": 2}))
    assert first.manifest is not None
    for file in {f.path for f in (*first.manifest.state, *second.manifest.state)}:
        storage_of(first.storage).delete(file)
    with pytest.raises(NotFoundError):
        browse.page(first, TOTAL.uid, TOTAL.name)
    job.log.remove(first.manifest.number)
    with pytest.raises(CheckpointNotFoundError, match=r"chk-\d+ of job 'likes' is not kept any"):
        browse.page(first, TOTAL.uid, TOTAL.name)
    with pytest.raises(CheckpointNotFoundError, match="num-retained"):
        compare.page(first, second, TOTAL.uid, TOTAL.name)
    with pytest.raises(NotFoundError):
        browse.page(second, TOTAL.uid, TOTAL.name)
