"""A driver that waits to take over a job that another driver runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from turnback.core.clock import Clock
from turnback.errors import StorageError
from turnback.job.directory import JobDirectory
from turnback.job.status import Status

_LOG = logging.getLogger(__name__)
_POLL_S = 1.0


class Standby:
    """Waits until a job needs a driver.

    It does if nobody runs it, if its driver ran on this machine and is dead, or if its driver has
    not reported for a while. A driver that was only slow is stopped by the fence of this one.

    Args:
        directory: The directory of the job.
        silence_s: How long a driver may be silent.
        clock: For tests.
    """

    def __init__(self, directory: JobDirectory, silence_s: float, clock: Clock) -> None:
        self._directory = directory
        self._silence_s = silence_s
        self._clock = clock

    def wait(self, is_cancelled: Callable[[], bool], on_wait: Callable[[Status], None]) -> bool:
        """Wait; returns False if the job ends meanwhile, or this was cancelled.

        A job that had already ended is to be started, as without standby. `on_wait` is called once,
        with the status of the driver that is waited for.
        """
        seen: tuple[str, int] | None = None
        since_s = self._clock.monotonic()
        while not is_cancelled():
            now_s = self._clock.monotonic()  # before the status is read: this may be held up
            try:
                status = self._directory.status()
            except StorageError as error:
                _LOG.warning("job %r: its status cannot be read: %s", self._directory.name, error)
                since_s = now_s  # nothing is known of its driver
                self._clock.sleep(_POLL_S)
                continue
            if status is None:
                return True
            if status.state.is_terminal:
                return seen is None
            if status.process.is_local() and not status.process.is_alive():
                return True
            heartbeat = (status.owner, status.heartbeat)
            if seen is None:
                on_wait(status)
            if heartbeat != seen:
                seen = heartbeat
                since_s = now_s
            elif now_s - since_s >= self._silence_s:
                return True
            self._clock.sleep(_POLL_S)
        return False
