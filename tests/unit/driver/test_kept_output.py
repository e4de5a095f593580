"""A checkpoint that lacks its files, or its output, cannot be started from."""

import msgspec
import pytest

from coordinator_fakes import Job, memory
from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.driver.restore_plan import require_files, require_kept_output
from turnback.errors import ConfigurationError, CorruptFileError
from turnback.job.directory import JobDirectory
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef


def test_also_if_what_was_written_in_its_place_is_committed() -> None:
    storage = memory()
    directory = JobDirectory(storage, "job")
    first = Job(storage)
    first.sink.broken = RuntimeError("the target does not answer")
    first.epoch(1)
    first.checkpoint()
    (manifest,) = first.log.scan().manifests
    assert first.log.uncommitted(manifest)
    directory.record_attempt(2, abandoned=(manifest.number,))
    second = Job(storage, nonce="m")
    second.epoch(1)
    second.checkpoint()
    # The record of the second one covers everything before it.
    promised = second.log.uncommitted(manifest)
    assert promised == {}
    snapshot = Snapshot(manifest, StorageRef(storage.uri), promised)
    with pytest.raises(ConfigurationError, match="rolled back in attempt 2, which started"):
        require_kept_output(directory, snapshot)


def test_a_dropped_checkpoint_that_a_late_write_has_brought_back() -> None:
    storage = memory()
    job = Job(storage)
    job.epoch(1)
    job.checkpoint()
    (manifest,) = job.log.scan().manifests
    read = SourcePosition("{}", (LogFile("0", "offsets/read-0", 3, "digest"),))
    manifest = msgspec.structs.replace(manifest, sources={"events": read})
    directory = JobDirectory(storage, "job")
    storage.put("offsets/read-0", b"one")
    require_files(directory, manifest)
    storage.delete("offsets/read-0")
    with pytest.raises(CorruptFileError, match=r"offsets/read-0 is missing\. Start from another"):
        require_files(directory, manifest)


def test_a_checkpoint_that_a_replaced_driver_has_abandoned_too_late() -> None:
    """Its successor started from the checkpoint, which commits what is promised first."""
    storage = memory()
    directory = JobDirectory(storage, "job")
    job = Job(storage)
    job.epoch(1)
    job.checkpoint()
    (manifest,) = job.log.scan().manifests
    snapshot = Snapshot(manifest, StorageRef(storage.uri), {})
    directory.record_attempt(3, checkpoint=manifest.number)
    directory.record_attempt(2, abandoned=(manifest.number,))
    require_kept_output(directory, snapshot)
    directory.record_attempt(4, abandoned=(manifest.number,))
    with pytest.raises(ConfigurationError, match="rolled back in attempt 4"):
        require_kept_output(directory, snapshot)
