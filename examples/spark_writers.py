"""Functions for `for_each_batch`: two Spark writers, made idempotent."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from turnback.spark import BatchEpoch

Write = Callable[[DataFrame, BatchEpoch], None]


def parquet(directory: str) -> Write:
    """A directory for each version of each writer, which a second call overwrites."""

    def write(frame: DataFrame, epoch: BatchEpoch) -> None:
        path = f"{directory}/writer={epoch.writer}/version={epoch.version}"
        frame.write.mode("overwrite").parquet(path)

    return write


def jdbc(url: str, table: str) -> Write:
    """A table that remembers how far it is: rows and version in one transaction.

    Besides the table, with the columns of the stream, there has to be
    `done (writer varchar, version bigint)`.
    """

    def write(frame: DataFrame, epoch: BatchEpoch) -> None:
        frame.write.jdbc(url, f"{table}_new", mode="overwrite")
        whose = f"where writer = '{epoch.writer}'"
        connection = frame.sparkSession._jvm.java.sql.DriverManager.getConnection(url)
        try:
            connection.setAutoCommit(False)
            statement = connection.createStatement()
            done = statement.executeQuery(f"select max(version) from done {whose}")
            done.next()
            if done.getLong(1) < epoch.version:  # null is 0
                statement.execute(f"delete from done {whose}")
                statement.execute(f"insert into done values ('{epoch.writer}', {epoch.version})")
                statement.execute(f"insert into {table} select * from {table}_new")
            connection.commit()
        finally:
            connection.rollback()  # nothing if it was committed; some drivers insist on it
            connection.close()

    return write
