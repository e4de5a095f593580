"""Events of a job that somebody should know of, each told once.

Whoever watches a job, its supervisor, its driver or `turnback watch`, claims an event in the job
directory before it calls anybody: the next number in `alerts/`. So every event is told once,
however many watch. A watcher that was killed before it had told the newest one leaves no mark that
it has; another one tells it then, under the same id.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from turnback.config.watchdog import AlertSettings
from turnback.core.clock import Clock, SystemClock
from turnback.core.masking import mask_text
from turnback.core.units import describe_exit
from turnback.errors import (
    AlreadyExistsError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    TurnbackError,
)
from turnback.job.directory import JobDirectory
from turnback.job.liveness import (
    LOST,
    STALLED,
    Liveness,
    is_restart_loop,
    liveness_of,
    recent_restarts,
)
from turnback.job.status import JobState, Status
from turnback.storage.base import Storage, put_if_absent_or_same
from turnback.storage.envelope import encode_document, read_document

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
            f"alerts.command: there is no executable program {name!r} on this machine. Use its "
            "full path, and make it executable"
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
        raise HookError(f"cannot run {words[0]!r}: {error.strerror}") from None
    try:
        _, printed = process.communicate(document, _COMMAND_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise HookError(f"{words[0]!r} took longer than {_COMMAND_S:g} s and was killed") from None
    finally:
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                with suppress(OSError):  # what it has not read is of no use to it any more
                    pipe.close()
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
                problem += ", a redirect: use the URL that it redirects to"
            is_final = status < 500 and status not in _AGAIN
        except (OSError, HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            problem = f"cannot reach {host}: {cause or type(cause).__name__}"
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


_FORMAT = 1
_FILE = re.compile(r"alerts/([0-9]+)\.(json|told|again)")
_KEPT = 50
_OLD_MS = 86_400_000
_TELLING_MS = 60_000
"""Telling takes less; see `Hooks`."""
_POLL_S = 5.0
_LAST_S = 30.0


class AlertEvent(StrEnum):
    """What has happened to a job."""

    FAILED = "failed"
    RESTART_LOOP = "restart-loop"
    LOST = "lost"
    STALLED = "stalled"
    RECOVERED = "recovered"
    TEST = "test"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is told; the id is the same whoever is told of it."""

    event: AlertEvent
    text: str
    job: str
    job_id: str
    state: str
    reason: str | None = None
    at_ms: int
    directory: str
    attempt: int | None = None
    epoch: int | None = None
    checkpoint: int | None = None
    restarts: int = 0
    host: str | None = None
    log: str | None = None
    id: str


def event_of(status: Status, alive: Liveness) -> AlertEvent | None:
    """What there is to tell of a job as it is; None while that is not clear yet.

    A job that is well has RECOVERED, which is told only after one of the other events.
    """
    troubles = {
        JobState.FAILED.value: AlertEvent.FAILED,
        LOST: AlertEvent.LOST,
        STALLED: AlertEvent.STALLED,
    }
    if alive.state in troubles:
        return troubles[alive.state]
    if alive.state in (JobState.FINISHED.value, JobState.CANCELED.value):
        return AlertEvent.RECOVERED
    if is_restart_loop(status):
        return AlertEvent.RESTART_LOOP
    return AlertEvent.RECOVERED if alive.state == JobState.RUNNING.value else None


class AlertLog:
    """The events of a job that were told, in its directory."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def last(self) -> tuple[int, Alert | None]:
        """The number of the newest event, 0 if there is none, and the event."""
        numbers = self._numbers()
        if not numbers:
            return 0, None
        path = _path(numbers[-1])
        try:
            return numbers[-1], read_document(self._storage, "alert", _FORMAT, path, Alert)
        except (CorruptFileError, FormatVersionError) as error:
            _LOG.warning("cannot read which alerts were sent, so some may be sent again: %s", error)
            return numbers[-1], None

    def claim(self, number: int, alert: Alert) -> bool:
        """Make an event the one of this number; False if somebody else was quicker."""
        try:
            put_if_absent_or_same(
                self._storage, _path(number), encode_document("alert", _FORMAT, alert)
            )
        except AlreadyExistsError:
            return False
        for old in self._numbers()[:-_KEPT]:
            for kind in ("told", "again", "json"):
                self._storage.delete(_path(old, kind))
        return True

    def record_told(self, number: int) -> None:
        """Note that the hooks were called with an event."""
        self._storage.put(_path(number, "told"), b"")

    def is_told(self, number: int) -> bool:
        return _path(number, "told") in self._storage.list("alerts")

    def claim_again(self, number: int) -> bool:
        """Take over an event whose watcher died; False if somebody else has done so."""
        try:
            put_if_absent_or_same(self._storage, _path(number, "again"), b"")
        except AlreadyExistsError:
            return False
        return True

    def _numbers(self) -> list[int]:
        matches = map(_FILE.fullmatch, self._storage.list("alerts"))
        return sorted(int(match[1]) for match in matches if match and match[2] == "json")


class RememberedAlerts:
    """The events that one watcher has seen, told to nobody else."""

    def __init__(self) -> None:
        self._alerts: list[Alert] = []

    def last(self) -> tuple[int, Alert | None]:
        return len(self._alerts), self._alerts[-1] if self._alerts else None

    def claim(self, number: int, alert: Alert) -> bool:
        self._alerts = [alert]
        return True

    def record_told(self, number: int) -> None:
        pass

    def is_told(self, number: int) -> bool:
        return True

    def claim_again(self, number: int) -> bool:
        return False


def _path(number: int, kind: str = "json") -> str:
    return f"alerts/{number}.{kind}"


class JobWatch:
    """Looks at a job again and again, and tells what happens to it.

    Nothing here fails the job or its watcher: what cannot be read or called is logged once until
    it works again.
    """

    def __init__(
        self,
        directory: JobDirectory,
        hooks: Hooks,
        clock: Clock | None = None,
        alerts: AlertLog | RememberedAlerts | None = None,
    ) -> None:
        self._directory = directory
        self._hooks = hooks
        self._clock = clock or SystemClock()
        self._alerts = alerts or AlertLog(directory.storage)
        self._last: tuple[int, Alert | None] | None = None
        self._told = 0
        self._is_failing = False
        self._was_stalled = False

    def look(self, *, once: bool = False) -> Alert | None:
        """Tell what is new of the job; returns what was told, None if nothing was.

        Unless it is to look `once` only, a job has to be STALLED twice in a row: a machine that
        wakes up finds all its drivers silent for a moment.
        """
        try:
            alert = self._new_alert(once) or self._untold_alert()
            if alert is not None:
                document = msgspec.json.encode(alert)
                self._hooks.call(alert.event.value, alert.job, alert.text, document)
                self._record_told()
        except TurnbackError as error:
            if not self._is_failing:
                _LOG.warning("cannot watch job %r: %s", self._directory.name, error)
            self._is_failing = True
            return None
        self._is_failing = False
        return alert

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch in a thread of its own; at the end of the block for a last time."""
        done = threading.Event()

        def watch() -> None:
            is_done = False
            while not is_done:
                is_done = done.wait(_POLL_S)
                alert = self.look()
                if alert is not None:
                    _LOG.warning("%s: %s", alert.event.value, alert.text)

        thread = threading.Thread(target=watch, name="turnback-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(_LAST_S)

    def _new_alert(self, once: bool) -> Alert | None:
        """Claim what has happened since the last event, if anything has."""
        status = self._directory.status()
        if status is None:
            return None
        alive = liveness_of(status, self._clock.now_ms())
        event = event_of(status, alive)
        was_stalled = self._was_stalled
        self._was_stalled = event is AlertEvent.STALLED
        if event is None or (event is AlertEvent.STALLED and not was_stalled and not once):
            return None
        self._last = self._last or self._alerts.last()
        while not self._is_known(event, status):
            number, _ = self._last
            alert = self._alert(event, status, alive)
            if self._alerts.claim(number + 1, alert):
                self._last = number + 1, alert
                return alert
            self._last = self._alerts.last()
        return None

    def _untold_alert(self) -> Alert | None:
        """Take over the newest event if whoever claimed it seems to have died."""
        number, alert = self._last or (0, None)
        if alert is None or number == self._told:
            return None
        if self._clock.now_ms() - alert.at_ms < _TELLING_MS:
            return None
        if not self._alerts.is_told(number) and self._alerts.claim_again(number):
            return alert
        self._told = number
        return None

    def _record_told(self) -> None:
        assert self._last is not None
        self._told, _ = self._last
        self._alerts.record_told(self._told)

    def _is_known(self, event: AlertEvent, status: Status) -> bool:
        assert self._last is not None
        _, last = self._last
        if event is AlertEvent.RECOVERED:
            return last is None or last.event is AlertEvent.RECOVERED
        if last is None:
            # What was over before anybody watched is no news.
            ended = event in (AlertEvent.FAILED, AlertEvent.LOST)
            return ended and self._clock.now_ms() - status.updated_ms > _OLD_MS
        if last.event is not event:
            return False
        again = event is not AlertEvent.RESTART_LOOP and last.attempt != status.attempt
        return not again

    def _alert(self, event: AlertEvent, status: Status, alive: Liveness) -> Alert:
        reason = mask_text((alive.problem or status.cause or "").strip()) or None
        if event is AlertEvent.RECOVERED:
            reason = None
        return Alert(
            event=event,
            text=_text(event, status, alive.state, reason),
            job=status.job,
            job_id=status.job_id,
            state=alive.state,
            reason=reason,
            at_ms=self._clock.now_ms(),
            directory=self._directory.storage.uri,
            attempt=status.attempt,
            epoch=status.epoch,
            checkpoint=status.checkpoint,
            restarts=status.restarts,
            host=status.process.host,
            log=status.log,
            id=uuid.uuid4().hex,
        )


def _text(event: AlertEvent, status: Status, state: str, reason: str | None) -> str:
    job = f"job {status.job!r}"
    if event is AlertEvent.RECOVERED:
        return f"{job} is {state} again" if state == JobState.RUNNING.value else f"{job} is {state}"
    why = (reason or "see its log for the reason").partition("\n")[0]
    if event is AlertEvent.RESTART_LOOP:
        if why.startswith("restarted"):
            return f"{job} has {why}"
        return f"{job} has restarted {recent_restarts(status)} times in the last ten minutes: {why}"
    return f"{job} is {state}: {why}"


def example_alert(directory: str) -> Alert:
    """An event that only shows whether telling works."""
    return Alert(
        event=AlertEvent.TEST,
        text="this is a test of Turnback's alerts: no action needed",
        job="test",
        job_id="test",
        state=JobState.RUNNING.value,
        at_ms=SystemClock().now_ms(),
        directory=directory,
        id=uuid.uuid4().hex,
    )
