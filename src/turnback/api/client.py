from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from turnback.runtime.job import JobReport

if TYPE_CHECKING:
    from turnback.runtime.spark import JobRunner


class JobClient:
    """A running job, in the hands of the program that started it."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._future: Future[JobReport] = Future()
        self._thread = threading.Thread(target=self._run, name="turnback-job", daemon=True)

    def start(self) -> JobClient:
        """Start the job's thread."""
        self._thread.start()
        return self

    @property
    def report(self) -> JobReport:
        """What the job has done so far."""
        return self._runner.report

    def done(self) -> bool:
        """Whether the job has ended."""
        return self._future.done()

    def cancel(self) -> None:
        """End the job; its checkpoints stay or go as configured."""
        self._runner.cancel()

    def result(self, timeout: float | None = None) -> JobReport:
        """Wait for the end of the job.

        Raises:
            JobFailedError: It failed for good.
            TimeoutError: It still runs.
        """
        try:
            return self._future.result(timeout)
        except KeyboardInterrupt:
            self.cancel()
            self._thread.join(30)
            raise

    def _run(self) -> None:
        try:
            self._future.set_result(self._runner.run())
        except BaseException as e:  # noqa: BLE001 - raised again in result()
            self._future.set_exception(e)
