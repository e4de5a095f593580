from __future__ import annotations

from turnback.coordinator import CheckpointLog, JobDirectory
from turnback.core.errors import FencedError


class Ownership:
    """Tells whether the job is still this driver's, for whatever no fence protects by itself.

    Args:
        directory: The job directory.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self._name = directory.name
        self._log = CheckpointLog(directory.storage)
        self._attempt: int | None = None

    @property
    def is_taken(self) -> bool:
        """Whether this driver has ever had the job."""
        return self._attempt is not None

    def take(self, attempt: int) -> None:
        """This driver has taken the fence of an attempt."""
        self._attempt = attempt

    def check(self) -> int:
        """Return the attempt of this driver.

        Raises:
            FencedError: There is none yet, or a newer one has taken over.
            StorageError: It cannot be told.
        """
        numbers = self._log.numbers()
        if self._attempt is None or not numbers:
            raise FencedError(f"job {self._name!r}: this driver has not taken it over yet")
        newest = self._log.get(numbers[-1])
        if newest.attempt > self._attempt:
            raise FencedError(
                f"job {self._name!r}: attempt {newest.attempt} has taken over from attempt "
                f"{self._attempt} of this driver. Stop this driver"
            )
        return self._attempt
