"""What `turnback run` is told of where a job starts, and with what."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from place import JOB, Place

pytestmark = [pytest.mark.exhaustive, pytest.mark.no_jvm]


def test_fresh_renamed_claimed_and_by_time(place: Place) -> None:
    out = place.directory / "again"

    def run(*options: str, script: tuple[str, ...] = ()) -> None:
        place.turnback("run", *options, JOB, place.events, out, "--bounded", *script)

    place.feed()
    place.turnback("run", JOB, place.events, place.out, "--bounded")
    assert place.complete()

    # from nothing, although there are checkpoints
    run("--fresh")
    assert place.complete(out)

    # an operator has another name now
    place.feed()
    run("--rename", "users=people", script=("--uid", "people"))
    assert place.complete(out)

    # from what there was a moment ago
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    place.feed()
    run("-s", now, script=("--uid", "people"))
    assert place.complete(out)

    # a savepoint is given to the job, which deletes it once it has a checkpoint of its own
    place.run(out=out, script=("--uid", "people"))
    taken = place.ask("stop", "counts", "--savepoint", "--yes")
    assert (Path(taken["path"]) / "_metadata.json").exists()
    place.feed()
    run("-s", taken["path"], "--claim-mode", "claim", script=("--uid", "people"))
    assert place.complete(out)
    assert not (Path(taken["path"]) / "_metadata.json").exists()
