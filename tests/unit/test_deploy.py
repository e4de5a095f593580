"""What is in deploy/: it names metrics, options and settings that there are."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from turnback.cli.main import PROGRAM
from turnback.config.configuration import variable_layer
from turnback.web.metrics import _STATES
from unit.web.web_support import World

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "turnback@.service"
WATCH = DEPLOY / "systemd" / "turnback-watch.service"
IMAGE = DEPLOY / "container" / "Dockerfile"
_WORDS = {"by", "and", "or", "unless", "on", "ignoring", "without", "bool", "offset"}


def metric_names(expression: str) -> set[str]:
    """The metrics in an expression of PromQL: what is no label, function, number or keyword."""
    plain = re.sub(r'"[^"]*"', "", expression)
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", plain)
    plain = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", plain)
    found = re.findall(r"\b([a-zA-Z_:][\w:]*)\b(?!\s*\()", plain)
    return {name for name in found if name not in _WORDS}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The metrics that the dashboard describes."""
    text = World(tmp_path_factory.mktemp("world")).browser().get("/metrics").text
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def test_expressions_are_read_as_prometheus_reads_them() -> None:
    text = 'max by (job_name) (a_b{state=~"LOST|x", y="z"}) == 1 and rate(c[5m]) * 60 > -1 or d'
    assert metric_names(text) == {"a_b", "c", "d"}


def test_alerts_ask_for_metrics_that_there_are(served: set[str]) -> None:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "turnback-alerts.yml").read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) > 5
    for rule in group["rules"]:
        used = metric_names(rule["expr"])
        assert used and used <= served, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
        asked = re.findall(r'state=~?"([A-Z|]+)"', rule["expr"])
        assert all(set(states.split("|")) <= set(_STATES) for states in asked), rule["alert"]


def test_the_board_asks_for_metrics_that_there_are(served: set[str]) -> None:
    board = json.loads((DEPLOY / "grafana" / "turnback-jobs.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 8
    for target in targets:
        used = metric_names(target["expr"])
        assert used and used <= served, target["expr"]
    (asked,) = (v["query"] for v in board["templating"]["list"] if v["name"] == "job")
    assert re.fullmatch(r"label_values\((\w+), job_name\)", asked)[1] in served


def commands() -> dict[str, list[str]]:
    """Every command of ours in the files, as words."""
    found = {}
    for line in (UNIT.read_text() + WATCH.read_text()).splitlines():
        key, _, value = line.partition("=")
        if key in ("ExecStart", "ExecStop"):
            found[f"{key} {value}"] = shlex.split(value.replace("%i", "orders"))[1:]
    image = dict(re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", IMAGE.read_text(), re.MULTILINE))
    found["image"] = [*json.loads(image["ENTRYPOINT"])[1:], *json.loads(image["CMD"])]
    return found


def test_commands_are_as_the_program_takes_them() -> None:
    assert {words[0] for words in commands().values()} == {"run", "stop", "watch"}
    for words in commands().values():
        context = PROGRAM.make_context("turnback", [*words], resilient_parsing=True)
        name, command, rest = PROGRAM.resolve_command(context, words)
        assert command is not None and name is not None
        command.make_context(name, rest, parent=context)  # raises what is wrong


def test_variables_are_settings_that_there_are() -> None:
    text = UNIT.read_text() + WATCH.read_text() + IMAGE.read_text()
    variables = set(re.findall(r"TURNBACK_CONF_\w+", text))
    assert variables
    variable_layer(dict.fromkeys(variables, "https://x"))


@pytest.mark.parametrize("file", [UNIT, WATCH], ids=lambda file: file.name)
def test_systemd_takes_the_unit(tmp_path: Path, file: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "turnback"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / file.name.replace("@", "@orders")
    text = file.read_text().replace("/opt/turnback/bin/turnback", str(program))
    unit.write_text(re.sub(r"^(User|Group)=.*\n", "", text, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    about_it = [line for line in done.stderr.splitlines() if "turnback" in line]
    assert about_it == [], done.stderr


def test_the_image_ends_as_its_user_and_installs_what_runs_need() -> None:
    lines = IMAGE.read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    known = {"FROM", "ARG", "RUN", "USER", "WORKDIR", "COPY", "ENV", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in steps} <= known
    assert [rest for word, rest in steps if word == "USER"] == ["turnback"]
    text = IMAGE.read_text()
    assert "openjdk-17-jre" in text and "turnback.launch.class_archive" in text
