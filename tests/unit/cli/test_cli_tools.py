"""`config`, `doctor`, `check` and `ui`."""

import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from turnback.cli.context import ExitCode
from turnback.cli.doctor import package_problem
from unit.cli.cli_support import make_job

# -- config


def values(done):
    return {row["key"]: (row["value"], row["origin"]) for row in done.json}


def test_config_shows_every_key_with_its_origin(shell):
    (shell.home / "turnback.yaml").write_text("parallelism.default: 3\nweb.port: 9000\n")
    done = shell(
        "config", "--json", "-D", "web.port=9001",
        env={"TURNBACK_CONF_STATE_SAVEPOINTS_DIR": "/sp"},
    )  # fmt: skip
    found = values(done)
    assert found["parallelism.default"] == ("3", "turnback.yaml")
    assert found["web.port"] == ("9001", "-D")
    assert found["state.savepoints.dir"] == ("/sp", "TURNBACK_CONF_STATE_SAVEPOINTS_DIR")
    assert found["state.checkpoints.dir"] == (str(shell.root), "TURNBACK_ROOT")
    assert found["log.level"] == ("info", "default")


def test_config_can_be_filtered(shell):
    keys = set(values(shell("config", "--json", "SAVEPOINTS")))
    assert keys and all("savepoints" in key for key in keys)
    assert set(values(shell("config", "--set-only", "--json"))) == {"state.checkpoints.dir"}
    assert "Port that the dashboard listens on" in shell("config", "web.port", "--doc").out


def test_config_hides_secrets(shell):
    done = shell("config", "-D", "s3.secret-key=hunter2")
    assert "hunter2" not in done.out + done.err


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("nonsense", "key=value"),
        ("=3", "key=value"),
        ("web.prt=1", "web.port"),
        ("web.port=many", "web.port"),
        ("web.port=99999", "web.port"),
    ],
)
@pytest.mark.parametrize("verb", ["config", "list"])
def test_a_wrong_setting_is_refused_everywhere(shell, verb, pair, said):
    done = shell(verb, "-D", pair)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert said in done.err


def test_a_wrong_file_is_refused(shell):
    (shell.home / "turnback.yaml").write_text("web.port: [1\n")
    assert shell("list").code == ExitCode.USAGE
    assert shell("list", env={"TURNBACK_CONF": "gone.yaml"}).code == ExitCode.USAGE


# -- doctor


def verdicts(done):
    return {row["name"]: row["verdict"] for row in done.json["findings"]}


def test_doctor_finds_a_healthy_machine(shell):
    shell.root.mkdir()
    done = shell("doctor", "--json", "-D", f"state.savepoints.dir={shell.home}/sp")
    found = verdicts(done)
    assert {found[name] for name in ("python", "pyspark", "packages", "jobs", "savepoints")} == {
        "ok"
    }
    assert list(shell.root.iterdir()) == [], "a probe was left"
    assert not (shell.home / "sp").exists(), "looking must not make directories"


def test_doctor_finds_a_missing_java(shell):
    done = shell("doctor", "--json", env={"JAVA_HOME": "/nowhere"})
    assert done.code == ExitCode.PROBLEM
    assert verdicts(done)["java"] == "fail"
    assert done.json["ok"] is False


def test_doctor_finds_a_place_that_cannot_be_used(shell, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for place in (str(file), f"{file}/below", "gopher://x", "s3://"):
        done = shell("doctor", "--json", "--root", place)
        assert done.code == ExitCode.PROBLEM, place
        assert verdicts(done)["jobs"] == "fail", place


def test_doctor_finds_a_directory_that_cannot_be_written(shell):
    shell.root.mkdir(mode=0o500)
    # Root may write everywhere but there.
    root = shell.root if os.geteuid() else "/proc/turnback"
    assert verdicts(shell("doctor", "--json", "--root", str(root)))["jobs"] == "fail"


def test_doctor_finds_a_wrong_configuration(shell):
    (shell.home / "turnback.yaml").write_text("web.prt: 1\n")
    done = shell("doctor")
    assert done.code == ExitCode.PROBLEM
    assert "web.port" in done.out


def test_doctor_warns_about_a_full_disk_and_a_taken_port(shell, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=200 << 20)
    monkeypatch.setattr("turnback.cli.doctor.shutil.disk_usage", lambda path: usage)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = verdicts(shell("doctor", "--json", "-D", f"web.port={port}"))
    assert (found["jobs"], found["dashboard"]) == ("warn", "warn")


def test_doctor_fails_when_nothing_can_be_written(shell, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1)
    monkeypatch.setattr("turnback.cli.doctor.shutil.disk_usage", lambda path: usage)
    assert shell("doctor").code == ExitCode.PROBLEM


def test_doctor_finds_wrong_packages(shell, monkeypatch):
    monkeypatch.setattr("turnback.cli.doctor.installed_version", {"pyspark": "3.5.1"}.get)
    found = {row["name"]: row for row in shell("doctor", "--json").json["findings"]}
    assert found["pyspark"]["verdict"] == "fail" and "3.5.1" in found["pyspark"]["found"]
    assert "pyarrow is not installed" in found["packages"]["found"]


@pytest.mark.parametrize(
    ("version", "bounds", "problem"),
    [
        ("4.2.0", ">=4.1,<5", None),
        ("4.0.9", ">=4.1", "x is 4.0.9, but >=4.1 is needed"),
        ("5", "<5.0.0", "x is 5, but <5.0.0 is needed"),
        ("4.10", ">4.9", None),
        ("2.3.0rc1", "<3", None),
        (None, "", "x is not installed"),
    ],
)
def test_versions_are_compared_as_numbers(monkeypatch, version, bounds, problem):
    monkeypatch.setattr("turnback.cli.doctor.installed_version", lambda name: version)
    assert package_problem(Requirement(f"x{bounds}")) == problem


# -- check


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-s", "orders@latest", "gone.py"], "gone.py"),
        (["-s", "orders@latest", "."], "is a directory"),
        (["job.py"], "-s"),
        (["-s", "", "job.py"], "-s"),
        (["-s", "orders@latest", "--rename", "x", "job.py"], "OLD=NEW"),
        (["-s", "orders@latest", "-n", "--allow", "x", "job.py"], "-n and --allow"),
    ],
)
def test_check_refuses_wrong_arguments(shell, words, said):
    make_job(shell.root, "orders")
    (shell.home / "job.py").write_text("")
    done = shell("check", *words)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert said in done.err


def test_check_of_an_unknown_snapshot(shell):
    (shell.home / "job.py").write_text("")
    assert shell("check", "-s", "orders@latest", "job.py").code == ExitCode.NOT_FOUND


# -- ui


@pytest.mark.parametrize(
    ("content", "mode"), [("short", 0o600), ("x" * 40, 0o644), ("a b" * 20, 0o600), ("", 0o600)]
)
def test_a_token_file_must_hold_a_token_and_be_private(shell, content, mode):
    path = shell.home / "token"
    path.write_text(content)
    path.chmod(mode)
    done = shell("ui", "--token-file", str(path), "--port", "0")
    assert done.code == ExitCode.USAGE
    assert content not in done.err or not content


def test_a_missing_token_file(shell):
    assert shell("ui", "--token-file", "gone", "--port", "0").code == ExitCode.USAGE


def test_a_port_that_is_taken(shell):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = shell("ui", "--port", str(taken.getsockname()[1]))
    assert done.code == ExitCode.USAGE
    assert "--port" in done.err


@pytest.mark.parametrize("port", ["abc", "-1", "65536", "1.5", ""])
def test_a_port_is_a_number(shell, port):
    done = shell("ui", "--port", port)
    assert done.code == ExitCode.USAGE
    assert f"'--port': {port!r} is not a whole number from 0 to 65535" in done.err


@pytest.mark.slow
def test_ui_serves_until_it_is_interrupted(shell):
    make_job(shell.root, "orders")
    path = shell.home / "token"
    path.write_text("t" * 32)
    path.chmod(0o600)
    server = shell.start("ui", "--port", "0", "--token-file", str(path))
    address = server.stdout.readline().strip()
    try:
        url, _, token = address.partition("?token=")
        assert token == "t" * 32
        with urllib.request.urlopen(f"{url}api/v1/jobs", timeout=10) as answer:
            assert [job["name"] for job in json.load(answer)] == ["orders"]
    finally:
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=30)
    assert "Traceback" not in err
    assert server.returncode in (0, ExitCode.INTERRUPTED)


@pytest.mark.slow
def test_ui_opens_a_browser_without_the_token_on_its_command_line(shell):
    browser, opened = shell.home / "browser", shell.home / "opened"
    browser.write_text(
        '#!/bin/sh\nfile="${1#file://}"\n'
        f'(echo "$@"; stat -c %a "$file"; cat "$file") > {opened}.new\nmv {opened}.new {opened}\n'
    )
    browser.chmod(0o755)
    shell.environ["BROWSER"] = str(browser)
    server = shell.start("ui", "--port", "0", "--open", "--json")
    try:
        until = time.monotonic() + 60
        while not opened.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        server.send_signal(signal.SIGINT)
        out, _ = server.communicate(timeout=30)
    printed = json.loads(out)
    command, mode, page = opened.read_text().split("\n", 2)
    assert printed["token"] not in command
    assert mode == "600"
    assert f"url={printed['address']}" in page
    assert not Path(command.removeprefix("file://")).exists()


# -- pack


def test_pack_refuses_a_script_that_is_not_there(shell):
    done = shell("pack", "nowhere.py")
    assert done.code == ExitCode.USAGE
    assert "the script nowhere.py does not exist" in done.err


def test_pack_refuses_a_name_that_spark_does_not_unpack(shell):
    done = shell("pack", "-o", "job-env.zip", "--json")
    assert done.code == ExitCode.USAGE
    assert "has to end in .tar.gz or .tgz" in done.json["error"]["message"]
