"""Calls a command and a webhook with an event, for a bounded time."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import signal
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from turnback.config.watchdog import AlertSettings
from turnback.core.errors import ConfigurationError, TurnbackError
from turnback.core.masking import mask_text
from turnback.core.units import describe_exit

_LOG = logging.getLogger(__name__)
_COMMAND_S = 15.0
_WEBHOOK_S = 5.0
_PAUSES_S = (1.0, 3.0)
"""Between tries of the webhook."""
_AGAIN = (408, 425, 429)
_MOST_TEXT = 500


class HookError(TurnbackError):
    """A hook could not be called; the message holds no secret."""


def check_command(settings: AlertSettings) -> None:
    """Raise `ConfigurationError` if there is no such command on this machine."""
    if settings.command is None:
        return
    name = shlex.split(settings.command)[0]
    if shutil.which(Path(name).expanduser()) is None:
        raise ConfigurationError(
            f"alerts.command: there is no program {name!r} on this machine that may be run. Write "
            "its whole path, and make it executable"
        )


class Hooks:
    """What is to be called; calling never raises and takes less than half a minute."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings
        self._failing: set[str] = set()

    @property
    def enabled(self) -> bool:
        return self._settings.enabled

    def call(self, event: str, job: str, text: str, document: bytes) -> list[str]:
        """Call all hooks; returns what went wrong, which is logged once until it works again."""
        command = self._settings.command
        webhook = self._settings.webhook
        calls: dict[str, Callable[[], None]] = {}
        if command is not None:
            variables = {"TURNBACK_EVENT": event, "TURNBACK_JOB": job, "TURNBACK_TEXT": text}
            calls["alerts.command"] = lambda: run_command(command, document, variables)
        if webhook is not None:
            calls["alerts.webhook"] = lambda: post(webhook, document)
        problems = []
        for name, call in calls.items():
            try:
                call()
                self._failing.discard(name)
            except HookError as error:
                problems.append(f"{name}: {error}")
                if name not in self._failing:
                    _LOG.error("alert not delivered (%s): %s: %s", text, name, error)
                self._failing.add(name)
        return problems


def run_command(command: str, document: bytes, variables: dict[str, str]) -> None:
    """Run a command with a document on its standard input."""
    words = shlex.split(command)
    try:
        process = subprocess.Popen(
            [str(Path(words[0]).expanduser()), *words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
            start_new_session=True,
        )
    except OSError as error:
        raise HookError(f"{words[0]!r} cannot be run: {error.strerror}") from None
    try:
        _, printed = process.communicate(document, _COMMAND_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise HookError(f"{words[0]!r} took longer than {_COMMAND_S:g} s and was killed") from None
    finally:
        if process.stderr is not None:
            process.stderr.close()
    if process.returncode:
        said = mask_text(printed.decode(errors="replace").strip()[-_MOST_TEXT:])
        how = describe_exit(process.returncode)
        raise HookError(f"{words[0]!r} {how}" + (f": {said}" if said else ""))


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would turn a POST into a GET, and may lead anywhere."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def post(address: str, document: bytes) -> None:
    """Post a document as JSON, and try again if the server is not there or has a problem."""
    host = urlsplit(address).hostname  # the rest may be secret
    for pause in (*_PAUSES_S, None):
        try:
            _post_once(address, document)
            return
        except HTTPError as error:
            status = error.code
            error.close()
            problem = f"{host} answered {status}"
            if 300 <= status < 400:
                problem += ", a redirect: give the address that it leads to"
            is_final = status < 500 and status not in _AGAIN
        except (OSError, HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            problem = f"{host} cannot be reached: {cause or type(cause).__name__}"
            is_final = isinstance(error, ValueError)
        if pause is None or is_final:
            raise HookError(problem)
        time.sleep(pause)


def _post_once(address: str, document: bytes) -> None:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"turnback/{version('turnback')}",
    }
    parts = urlsplit(address)
    if parts.username is not None:  # urllib takes a name and a password for a part of the host
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    request = Request(address, document, headers, method="POST")
    with build_opener(_NoRedirect).open(request, timeout=_WEBHOOK_S) as answer:
        answer.read(1)
