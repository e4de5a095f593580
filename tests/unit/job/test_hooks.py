"""Commands and webhooks that are called with an event, and what they do wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from receiver import Receiver

from turnback.config.watchdog import AlertSettings
from turnback.errors import ConfigurationError
from turnback.job import alerts as hooks_module
from turnback.job.alerts import HookError, Hooks, check_command, post, run_command

# -- the webhook


def test_a_webhook_gets_the_event_as_json(receiver: Receiver) -> None:
    address = receiver.address.replace("//", "//me:se%40cret@")
    post(f"{address}?key=1", b'{"event": "test"}')
    ((path, headers, body),) = receiver.got
    assert (path, body) == ("/hook?key=1", b'{"event": "test"}')
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic bWU6c2VAY3JldA=="
    assert headers["User-Agent"].startswith("turnback/")


def test_a_server_with_a_problem_is_asked_again(receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    post(receiver.address, b"{}")
    assert len(receiver.got) == 3


@pytest.mark.parametrize(
    ("answers", "calls", "message"),
    [
        ([500, 502, 503], 3, r"127\.0\.0\.1 answered 503"),
        ([404], 1, "answered 404"),
        ([302], 1, "answered 302, a redirect: use the URL that it redirects to"),
    ],
)
def test_a_server_that_refuses(
    receiver: Receiver, answers: list[int], calls: int, message: str
) -> None:
    receiver.answers = list(answers)
    with pytest.raises(HookError, match=message):
        post(f"{receiver.address}/s3cr3t", b"{}")
    assert len(receiver.got) == calls


def test_a_server_that_is_not_there_is_logged_once_without_secrets(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.server_close()
    hooks = Hooks(AlertSettings(webhook=f"{receiver.address}/s3cr3t?token=t0ken"))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            (problem,) = hooks.call("failed", "orders", "job 'orders' is FAILED", b"{}")
    assert "alerts.webhook: cannot reach 127.0.0.1: " in problem
    assert caplog.text.count("alert not delivered (job 'orders' is FAILED)") == 1
    assert "s3cr3t" not in caplog.text and "t0ken" not in caplog.text


# -- the command


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_command_gets_the_event(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = script(tmp_path / "page me", f'echo "$TURNBACK_EVENT|$2" > {out}; cat >> {out}')
    hooks = Hooks(AlertSettings(command=f"'{command}' --team 'data people'"))
    assert hooks.call("lost", "orders", "text", b'{"x": 1}') == []
    assert out.read_text() == 'lost|data people\n{"x": 1}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo password=hunter2 is wrong >&2; exit 3", r"ended with exit status 3: password=\*{4}"),
        ("kill -9 $$", "was killed by signal 9$"),
        ("sleep 60", r"took longer than 0\.5 s and was killed"),
        ("exec 0<&-; exit 1", "ended with exit status 1$"),
    ],
)
def test_a_command_that_fails(
    tmp_path: Path, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in text:
        monkeypatch.setattr(hooks_module, "_COMMAND_S", 0.5)
    with pytest.raises(HookError, match=message):
        run_command(script(tmp_path / "page", text), b"x" * 200_000, {})


def test_a_command_that_is_gone_hinders_no_other_hook(tmp_path: Path, receiver: Receiver) -> None:
    settings = AlertSettings(command=str(tmp_path / "gone"), webhook=receiver.address)
    (problem,) = Hooks(settings).call("failed", "orders", "text", b'{"event": "failed"}')
    assert problem == f"alerts.command: cannot run '{tmp_path}/gone': No such file or directory"
    assert receiver.events == ["failed"]


def test_a_command_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for command in (tmp_path / "gone", tmp_path / "plain", "no-such-program-anywhere"):
        with pytest.raises(
            ConfigurationError, match=r"alerts\.command: there is no executable program"
        ):
            check_command(AlertSettings(command=str(command)))
    check_command(AlertSettings(command="sh -c true"))
    check_command(AlertSettings())
