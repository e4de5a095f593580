"""docs/dashboard.md says what there is, and nothing else."""

import re
import shutil
import subprocess
from pathlib import Path

from web_support import TOKEN, served

from services.missing import missing
from turnback.job.requests import Requests
from turnback.web.metrics import JOB_METRICS, OPERATOR_METRICS
from turnback.web.server import ENDPOINTS

TEXT = (Path(__file__).parents[3] / "docs" / "dashboard.md").read_text()


def rows(heading: str) -> list[list[str]]:
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    return [row for row in cells if row and row[0].startswith("`")]


def test_every_call_is_documented_and_exists():
    documented = {}
    for call, _, given in rows("JSON API"):
        documented[call.strip("`")] = sorted(re.findall(r"`(\w+)`", given))
    wanted = {}
    for endpoint in ENDPOINTS:
        fields = [p.name for p in endpoint.query]
        fields += endpoint.body.__struct_fields__ if endpoint.body else []
        wanted[f"{endpoint.method} {endpoint.path}"] = sorted(fields)
    assert documented == wanted


def test_every_metric_is_documented_and_exists():
    documented = {row[0].strip("`") for row in rows("Metrics")}
    always = {"flink_jobmanager_numRunningJobs", "turnback_job_state", "turnback_job_readable"}
    assert documented == {*JOB_METRICS, *OPERATOR_METRICS, *always}
    for name in re.findall(r"(?:flink|turnback)_\w+", TEXT):
        assert name in documented


def test_the_examples_work(world):
    if shutil.which("curl") is None:
        missing("curl is not installed")
    (script,) = [block for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S) if "curl" in block]
    with served(world.jobs) as port:
        script = script.replace("UI=http://127.0.0.1:8081", f"UI=http://127.0.0.1:{port}")
        script = f"set -e\nTOKEN={TOKEN}\n{script}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"columns":["value"],"rows":[[1]]' in done.stdout
    assert "flink_jobmanager_numRunningJobs 1.0" in done.stdout
    (asked,) = Requests(world.likes.storage).open()
    assert asked.label == "before-v2"
