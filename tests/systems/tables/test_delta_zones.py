"""A Delta table that is partitioned by instants, read by Spark's own reader in another zone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from table_support import DeltaPlace, Job

from services.delta import delta_settings
from turnback import Types

READER = Path(__file__).with_name("delta_reader.py")
# The second hour of that night comes twice in New York: 01:30 is either of the first two.
MOMENTS = [
    datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
    datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
    datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC),
]


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_spark_reads_instants_of_partitions_in_any_session_time_zone(
    tmp_path: Path, java: str
) -> None:
    type_ = Types.ROW_NAMED(["at", "n"], [Types.INSTANT(), Types.LONG()])
    job = Job(DeltaPlace(tmp_path), type_, partition_by=["at"])
    job.start().commit([job.write(*((moment, n) for n, moment in enumerate(MOMENTS)))])
    rows = sorted([micros(moment), n] for n, moment in enumerate(MOMENTS))
    by_zone = "at = timestamp'2026-11-01 06:30:00Z'"
    by_session = "at = timestamp'2026-07-01 08:00:00.123456'"  # New York is four hours behind
    later = "at > timestamp'2026-11-01 05:30:00Z'"
    settings = delta_settings() | {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.ui.enabled": "false",
    }
    done = subprocess.run(
        [sys.executable, READER, job.place.root, json.dumps(settings), by_zone, by_session, later],
        env=os.environ | {"JDK_JAVA_OPTIONS": java, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    everything, *found = json.loads(done.stdout)
    assert everything == rows
    second, summer = [micros(MOMENTS[1]), 1], [micros(MOMENTS[2]), 2]
    assert found == [[second], [summer], [second]]
