from __future__ import annotations

import threading
from concurrent.futures import Future
from os import PathLike
from typing import TYPE_CHECKING

from turnback.api.arguments import path_text
from turnback.config.checkpointing import SavepointFormat
from turnback.config.configuration import location
from turnback.driver.job import JobReport
from turnback.errors import CheckpointError
from turnback.job.request import RequestKind, RequestSpec

if TYPE_CHECKING:
    from turnback.driver.runner import JobRunner


class JobClient:
    """A handle to a running job, for the program that started it."""

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
        """A report on the job so far."""
        return self._runner.report

    def done(self) -> bool:
        """Whether the job has ended."""
        return self._future.done()

    def cancel(self) -> None:
        """Cancel the job; its checkpoints are kept or deleted as configured."""
        self._runner.cancel()

    def trigger_savepoint(
        self,
        savepoint_directory: str | PathLike[str] | None = None,
        format_type: SavepointFormat | None = None,
        *,
        label: str | None = None,
        note: str | None = None,
    ) -> Future[str | None]:
        """Take a savepoint at the next barrier while the job keeps running.

        Args:
            savepoint_directory: An empty or new directory for it; by default a new one below
                ``state.savepoints.dir``.
            format_type: Typed Parquet (canonical) or copies of state files (native).
            label: A short name for it.
            note: Why it is taken.

        Returns:
            A future with its location, done when the savepoint is complete.
        """
        return self._submit(
            RequestKind.SAVEPOINT, savepoint_directory, format_type, label=label, note=note
        )

    def stop(self) -> Future[str | None]:
        """Finish the current epoch, commit the sinks, and end the job.

        Takes a savepoint if ``state.savepoints.dir`` is set, unless ``savepoints.on-stop`` is off.

        Returns:
            A future with the location of the savepoint, if there is one, done when the job has
            ended.
        """
        settings = self._runner.spec.savepoints
        saves = settings.on_stop and settings.directory is not None
        return self._submit(RequestKind.STOP, savepoint=saves)

    def stop_with_savepoint(
        self,
        advance_to_end_of_event_time: bool = False,
        savepoint_directory: str | PathLike[str] | None = None,
        format_type: SavepointFormat | None = None,
        *,
        label: str | None = None,
        note: str | None = None,
    ) -> Future[str | None]:
        """Finish the current epoch, take a savepoint of it, and end the job.

        The future is done when the job has ended. If the savepoint cannot be taken, the job keeps
        running.

        Args:
            advance_to_end_of_event_time: Advance event time to its end, and record that in the
                savepoint: for a job that will not continue with its streams.
            savepoint_directory: As in `trigger_savepoint`, like the other arguments.
            format_type: Likewise.
            label: Likewise.
            note: Likewise.
        """
        return self._submit(
            RequestKind.STOP,
            savepoint_directory,
            format_type,
            label=label,
            note=note,
            savepoint=True,
            drain=advance_to_end_of_event_time,
        )

    def cancel_with_savepoint(
        self,
        savepoint_directory: str | PathLike[str] | None = None,
        format_type: SavepointFormat | None = None,
        *,
        label: str | None = None,
        note: str | None = None,
    ) -> Future[str | None]:
        """Finish the current epoch, take a savepoint of it, and cancel the job.

        Differs from `stop_with_savepoint` in the job's final state, and in whether its checkpoints
        are kept. If the savepoint cannot be taken, the job keeps running.
        """
        return self._submit(
            RequestKind.CANCEL,
            savepoint_directory,
            format_type,
            label=label,
            note=note,
            savepoint=True,
        )

    def _submit(
        self,
        kind: RequestKind,
        directory: str | PathLike[str] | None = None,
        format_type: SavepointFormat | None = None,
        *,
        label: str | None = None,
        note: str | None = None,
        savepoint: bool = False,
        drain: bool = False,
    ) -> Future[str | None]:
        if self.done():
            raise CheckpointError(f"job {self.report.job_name!r} has ended: start it again first")
        target = None if directory is None else path_text("savepoint_directory", directory)
        spec = RequestSpec(
            kind,
            None if target is None else location(target),
            SavepointFormat(format_type or self._runner.spec.savepoints.format),
            label=label,
            note=note,
            savepoint=savepoint,
            drain=drain,
        )
        request = self._runner.requests.submit(spec)
        future: Future[str | None] = Future()

        def wait() -> None:
            try:
                future.set_result(self._runner.requests.wait(request, self.done))
            except BaseException as e:  # noqa: BLE001 - raised again by the future
                future.set_exception(e)

        future.set_running_or_notify_cancel()
        threading.Thread(target=wait, name="turnback-request", daemon=True).start()
        return future

    def result(self, timeout: float | None = None) -> JobReport:
        """Wait for the end of the job.

        Raises:
            JobFailedError: It failed permanently.
            TimeoutError: It is still running.
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
