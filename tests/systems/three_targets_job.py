"""One stream from Kafka into Kafka, PostgreSQL and Delta at once, on Spark; a process of its own.

    payments -> [weigh, in version 2] -> key_by(account) -> Total -+-> topic
                                                                   +-> table in PostgreSQL
                                                                   +-> Delta table

Version 2 has one more operator, and a function that says so; uids and state are the same.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from kafka_job import kafka_sink

from turnback import (
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.connectors import JsonRowDeserializationSchema
from turnback.connectors.kafka import KafkaSource
from turnback.connectors.sql import PostgresSink
from turnback.connectors.tables import DeltaSink
from turnback.spark.session import spark_session

JOB = "three-targets"
PAYMENT = "account string, seq bigint, amount bigint"
TOTAL = "account string, seq bigint, previous bigint, total bigint, version bigint"


class Total(KeyedProcessFunction):
    """Adds up the payments of an account, and says which version of the program did."""

    last = ValueStateDescriptor("last", int)
    total = ValueStateDescriptor("total", int)

    def __init__(self, version: int) -> None:
        self._version = version

    def process_element(self, value, ctx):
        previous, total = self.last.value(), (self.total.value() or 0) + value.amount
        self.last.update(value.seq)
        self.total.update(total)
        before = -1 if previous is None else previous
        yield Row(value.account, value.seq, before, total, self._version)


def weigh(payment):
    """What version 2 does first: a payment counts twice."""
    return Row(payment.account, payment.seq, 2 * payment.amount)


def build(env: StreamExecutionEnvironment, args: argparse.Namespace) -> None:
    """The program."""
    rows = JsonRowDeserializationSchema.builder().type_info(PAYMENT).build()
    source = KafkaSource.builder().set_bootstrap_servers(args.servers).set_topics(args.payments)
    payments = env.from_source(
        source.set_value_only_deserializer(rows).build(),
        WatermarkStrategy.no_watermarks(),
        "payments",
        uid="payments",
    )
    if args.version == 2:
        payments = payments.map(weigh, PAYMENT).uid("weigh")
    totals = payments.key_by("account").process(Total(args.version), TOTAL).uid("total")
    totals.sink_to(kafka_sink(args.servers, args.totals, key="account")).uid("to-kafka")
    table = PostgresSink(args.dsn, table="totals", password_from="STORY_PASSWORD")
    totals.sink_to(table).uid("to-postgres")
    totals.sink_to(DeltaSink(args.table)).uid("to-table")


def main() -> int:
    """Run the job until it is stopped; with `--bounded` until its input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--payments", required=True, help="the topic to read")
    parser.add_argument("--totals", required=True, help="the topic to write")
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--table", required=True, help="where the Delta table is")
    parser.add_argument("--jars", required=True, help="Spark's connector for Kafka")
    parser.add_argument("--gate", required=True, help="start the job when this file is there")
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--start-from")
    parser.add_argument("--bounded", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    spark = spark_session("local[2]", **{"spark.jars": args.jars})
    env = StreamExecutionEnvironment(spark, args.root, {})
    env.set_parallelism(2).enable_checkpointing(300)
    env.set_restart_strategy(RestartStrategies.no_restart())
    build(env, args)
    gate = Path(args.gate)
    gate.with_suffix(".ready").touch()
    while not gate.exists():
        time.sleep(0.002)
    env.execute(JOB, bounded=args.bounded or None, start_from=args.start_from)
    return 0


if __name__ == "__main__":
    sys.exit(main())
