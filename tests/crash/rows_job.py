"""A job whose tasks prepare rows for Kafka and PostgreSQL, some of them twice: see `--help`.

Speculation starts a copy of a task that is held up. In epoch `BEFORE` the task waits before it
prepares its rows, until the copy has prepared them as well; the copy wins. In epoch `AFTER` it
waits after that, until the copy has begun to write beside its rows; then it ends, and wins. In
epoch `LOST` it takes its executor with it when it has prepared its rows. Nothing is committed
before the end of the input, unless `--interval` says so.

`--scene prepare` has another story: task 0 takes its executor with it within `Database.prepare`, in
epoch `BEFORE` when nothing was sent, in epoch `AFTER` when the server has not answered yet. In
`--scene commit` the driver waits between its first commit and the second one, and a task beside it
before it prepares its rows, until the test has killed the executor of that task.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from turnback import (
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.connectors import JsonRowSerializationSchema
from turnback.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from turnback.connectors.sql import PostgresSink
from turnback.sinks.base import SinkWriter
from turnback.spark.session import spark_session

EPOCHS, KEYS = 7, 20
BEFORE, AFTER, LOST = 2, 4, 6
_PATIENCE_S = 120.0


class Number(KeyedProcessFunction):
    """Numbers the elements of a key from 0 on."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value, ctx):
        n = self.count.value() or 0
        self.count.update(n + 1)
        yield Row(value.key, n)


class HeldUpSink(PostgresSink):
    """Holds the first attempt at task 0 up, and leaves marks that say who came how far."""

    def __init__(self, dsn, marks, **arguments):
        super().__init__(dsn, **arguments)
        self.marks = marks

    def writer(self, ctx):
        writer, mark = super().writer(ctx), f"{self.marks}/{ctx.epoch}"
        if ctx.partition or ctx.epoch not in (BEFORE, AFTER, LOST):
            return writer
        try:
            os.close(os.open(f"{mark}-first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return writer if ctx.epoch == LOST else Copy(writer, ctx.epoch, mark)
        return First(writer, ctx.epoch, mark)


class DyingSink(PostgresSink):
    """Takes the executor of task 0 with it, twice, while it prepares its rows."""

    def __init__(self, dsn, marks, **arguments):
        super().__init__(dsn, **arguments)
        self.marks = marks

    def connect(self):
        database = super().connect()
        prepare = database.prepare

        def dying(txn):
            if txn.partition or txn.epoch not in (BEFORE, AFTER) or not self.is_first(txn.epoch):
                prepare(txn)
                return
            if txn.epoch == AFTER:
                send(database, f"PREPARE TRANSACTION '{txn.name}'")
            os.kill(executor_of(os.getpid()), signal.SIGKILL)
            time.sleep(_PATIENCE_S)

        database.prepare = dying
        return database

    def is_first(self, what):
        """Whether nobody has left this mark before; it holds who has."""
        try:
            mark = os.open(f"{self.marks}/{what}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(mark, str(os.getpid()).encode())
        os.close(mark)
        return True


def send(database, statement):
    """Have a statement on its way to the server, and do not wait for its answer."""
    connection = database._connection.pgconn
    connection.send_query(statement.encode())
    while connection.flush():
        time.sleep(0.001)


class WaitingSink(DyingSink):
    """Has the driver wait after its first commit, and task 0 of epoch `AFTER` beside it."""

    def connect(self):
        database = PostgresSink.connect(self)
        prepare, commit = database.prepare, database.commit_prepared

        def waiting(txn):
            if not txn.partition and txn.epoch == AFTER and self.is_first("task-waits"):
                self.wait_for("killed")
            return prepare(txn)

        def committing(txn):
            done = commit(txn)
            if self.is_first("committed"):
                self.wait_for("killed")
            else:
                self.is_first("committed-more")
            return done

        database.prepare, database.commit_prepared = waiting, committing
        return database

    def wait_for(self, what):
        end = time.monotonic() + _PATIENCE_S
        while not Path(f"{self.marks}/{what}").exists() and time.monotonic() < end:
            time.sleep(0.01)


SINKS = {"speculation": HeldUpSink, "prepare": DyingSink, "commit": WaitingSink}


class Held(SinkWriter):
    """A writer that can be told to wait."""

    def __init__(self, writer, epoch, mark):
        self.writer, self.epoch, self.mark = writer, epoch, mark

    def write(self, batch):
        self.writer.write(batch)

    def abort(self):
        self.writer.abort()

    def tell(self, what):
        Path(f"{self.mark}-{what}").touch()

    def wait_for(self, what):
        end = time.monotonic() + _PATIENCE_S
        while not Path(f"{self.mark}-{what}").exists() and time.monotonic() < end:
            time.sleep(0.01)


class First(Held):
    """The attempt that Spark finds too slow."""

    def prepare(self):
        if self.epoch == BEFORE:
            self.wait_for("copy-prepared")
        prepared = self.writer.prepare()
        self.tell("first-prepared")
        if self.epoch == LOST:
            os.kill(executor_of(os.getpid()), signal.SIGKILL)
        if self.epoch in (BEFORE, LOST):
            time.sleep(_PATIENCE_S)  # Spark ends it, for the copy has won, or with its executor
        self.wait_for("copy-began")
        return prepared


class Copy(Held):
    """The attempt that Spark starts beside it."""

    def write(self, batch):
        self.writer.write(batch)
        self.tell("copy-began")

    def prepare(self):
        if self.epoch == AFTER:
            time.sleep(_PATIENCE_S)  # Spark ends it, for the first attempt has won
        prepared = self.writer.prepare()
        self.tell("copy-prepared")
        self.wait_for("first-prepared")
        return prepared


def executor_of(worker):
    """The executor that a Python worker works for: there is a daemon in between."""
    return parent(parent(worker))


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def topic_of(servers, topic):
    """A sink for a topic, which is not held up: its rows are staged before those of the table."""
    records = KafkaRecordSerializationSchema.builder().set_topic(topic).set_key_field("key")
    records.set_value_serialization_schema(JsonRowSerializationSchema.builder().build())
    sink = KafkaSink.builder().set_bootstrap_servers(servers)
    sink.set_record_serializer(records.build())
    sink.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    return sink.set_transactional_id_prefix(f"rows-{topic}").build()


def write_input(directory: Path) -> list[tuple[str, int]]:
    """One file for each epoch; returns the rows that the table is to have, sorted."""
    directory.mkdir()
    for n in range(EPOCHS):
        path = directory / f"{n}.json"
        path.write_text("".join(json.dumps({"key": f"k{k}"}) + "\n" for k in range(KEYS)))
        os.utime(path, (1_700_000_000 + n,) * 2)  # Spark takes the oldest first
    return sorted((f"k{k}", n) for n in range(EPOCHS) for k in range(KEYS))


def main() -> int:
    """Run the job until its input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--conf", action="append", default=[], help="a Spark setting, key=value")
    parser.add_argument("--base", required=True, help="with the input; marks and jobs go there")
    parser.add_argument("--kafka", help="where the broker is")
    parser.add_argument("--topic", help="of the broker, for the rows as well")
    parser.add_argument("--scene", choices=SINKS, default="speculation", help="what happens")
    parser.add_argument("--interval", default="1 h", help="between two checkpoints")
    parser.add_argument("--dsn", required=True, help="of the server that has the table")
    parser.add_argument("--table", default="numbers", help="with the columns key and n")
    args = parser.parse_args()
    spark = spark_session(args.master, **dict(c.split("=", 1) for c in args.conf))
    env = StreamExecutionEnvironment(spark, f"{args.base}/jobs")
    env.set_parallelism(2).enable_checkpointing(args.interval)
    env.set_restart_strategy(RestartStrategies.no_restart())
    keys = env.from_files(
        f"{args.base}/input", "json", "key string", uid="keys", max_files_per_epoch=1
    )
    numbered = keys.key_by("key").process(Number(), "key string, n bigint").uid("numbers")
    sink = SINKS[args.scene](
        args.dsn, f"{args.base}/marks", table=args.table, password_from="ROWS_PASSWORD"
    )
    if args.topic:
        numbered.sink_to(topic_of(args.kafka, args.topic)).uid("records")
    numbered.sink_to(sink).uid("rows")
    env.execute("rows", bounded=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
