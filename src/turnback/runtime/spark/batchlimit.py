"""How large the batches of rows are that Spark hands to Python."""

from __future__ import annotations

from pyspark.sql import SparkSession

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NONE = str(2**31 - 1)
"""What Spark takes for no limit in bytes."""

SMALL = 16 << 20
"""Batches up to this size need no limit: it leaves room for rows much larger than any so far."""


class BatchLimit:
    """Does without a limit in bytes while the limit in rows alone keeps batches small.

    Spark measures a batch after every row that it adds, which takes a third of the time of handing
    the rows over. An attempt begins with the limit, until it has seen rows. Were they to grow a
    hundredfold at once, the attempt would fail, and the next one begin with the limit again. A
    limit that the user has set is left alone.
    """

    def __init__(self) -> None:
        self._row_bytes = 0
        self._is_off = False

    def learn(self, row_bytes: int) -> None:
        """Take in how large the rows of an epoch were; 0 if there were too few to tell."""
        self._row_bytes = max(self._row_bytes, row_bytes)

    def apply(self, session: SparkSession) -> None:
        """Set or remove the limit in the session of the next epoch."""
        if not self._row_bytes:
            return
        if self._is_off:
            if not self._is_small(session):
                session.conf.unset(_BYTES)
                self._is_off = False
        elif session.conf.get(_BYTES, None) is None and self._is_small(session):
            session.conf.set(_BYTES, _NONE)
            self._is_off = True

    def _is_small(self, session: SparkSession) -> bool:
        rows = int(session.conf.get(_ROWS) or 0)
        return 0 < rows * self._row_bytes <= SMALL
