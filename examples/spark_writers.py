"""Functions for `for_each_batch`: two Spark writers, made idempotent."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from turnback import BatchEpoch

Write = Callable[[DataFrame, BatchEpoch], None]


def parquet(directory: str) -> Write:
    """A directory for each version, which a second call overwrites."""

    def write(frame: DataFrame, epoch: BatchEpoch) -> None:
        frame.write.mode("overwrite").parquet(f"{directory}/version={epoch.version}")

    return write


def jdbc(url: str, table: str) -> Write:
    """A table that remembers how far it is: rows and version in one transaction.

    Besides the table, with the columns of the stream, there has to be
    `done (job varchar, sink varchar, version bigint)`.
    """

    def write(frame: DataFrame, epoch: BatchEpoch) -> None:
        frame.write.jdbc(url, f"{table}_new", mode="overwrite")
        whose = f"where job = '{epoch.job_id}' and sink = '{epoch.sink}'"
        connection = frame.sparkSession._jvm.java.sql.DriverManager.getConnection(url)
        try:
            connection.setAutoCommit(False)
            statement = connection.createStatement()
            done = statement.executeQuery(f"select max(version) from done {whose}")
            done.next()
            if done.getLong(1) < epoch.version:  # null is 0
                statement.execute(f"delete from done {whose}")
                values = f"'{epoch.job_id}', '{epoch.sink}', {epoch.version}"
                statement.execute(f"insert into done values ({values})")
                statement.execute(f"insert into {table} select * from {table}_new")
            connection.commit()
        finally:
            connection.rollback()  # nothing if it was committed; some drivers insist on it
            connection.close()

    return write
