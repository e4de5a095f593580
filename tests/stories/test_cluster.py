"""The same commands for a job on a cluster with several executors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from place import Place

from services.spark import spark_cluster

pytestmark = pytest.mark.exhaustive


def test_a_job_on_a_cluster_is_run_saved_killed_and_goes_on(place: Place, tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    java = {"JDK_JAVA_OPTIONS": place.environment["JDK_JAVA_OPTIONS"]}
    with spark_cluster(directory, environment=java) as cluster:
        password = {"spark.hadoop.my.password": "hidden-from-ps"}
        settings = {"spark.master": cluster.master, **cluster.settings, **password}
        place.feed()
        job = place.run(*(word for k, v in settings.items() for word in ("-D", f"{k}={v}")))
        place.await_complete()
        assert len(cluster.executors()) == 2
        # the driver's JVM and those of executors among them
        assert not [line for line in _command_lines() if "hidden-from-ps" in line]
        taken = place.ask("savepoint", "counts", "--label", "on-a-cluster")
        place.kill(job["driver"]["pid"])
        place.feed()
        place.await_complete()
        assert place.ask("status", "counts")["summary"]["attempt"] == 2
        place.until(lambda: _records(place, "users"), "the records are counted")
        shown = {r["key"]: (r["value"], r["origin"]) for r in place.ask("config", *_only(settings))}
        assert shown["spark.master"] == (cluster.master, "-D")
        place.ask("cancel", "counts", "--yes")
    # and on one machine again, from what was saved on the cluster
    out = place.directory / "alone"
    place.run("-s", taken["path"], "--name", "alone", out=out)
    place.until(lambda: place.counted(out), "it goes on alone")
    place.ask("cancel", "alone", "--yes")


def _command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            lines.append(path.read_text(errors="replace"))
    return lines


def _records(place: Place, uid: str) -> int:
    (operator,) = (o for o in place.ask("status", "counts")["operators"] if o["uid"] == uid)
    return int(operator["records_in"])


def _only(settings: dict[str, str]) -> list[str]:
    return ["-D", f"spark.master={settings['spark.master']}"]
