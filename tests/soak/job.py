"""The job that is killed: running totals per account, and from these running totals per region.

What it writes does not depend on where batches begin or end. `verify` works out the same without
Turnback, and has the two numbers below once more.
"""

from __future__ import annotations

import argparse

from turnback import (
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.connectors import JsonRowSerializationSchema
from turnback.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from turnback.connectors.sql import PostgresSink

RECENT = 7
"""After so many records the list of an account begins anew."""
FORGET = 3
"""After so many records of an account a region forgets it."""

RECORD = "account string, seq bigint, region string, amount bigint"
ACCOUNT_ROW = (
    "account string, seq bigint, count bigint, total bigint, recent bigint, "
    "region string, amount bigint"
)
REGION_ROW = (
    "region string, count bigint, total bigint, account string, seq bigint, "
    "amount bigint, of_account bigint"
)


class Accounts(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)
    total = ValueStateDescriptor("total", int)
    recent = ListStateDescriptor("recent", int)

    def process_element(self, record, ctx):
        count = (self.count.value() or 0) + 1
        total = (self.total.value() or 0) + record.amount
        self.count.update(count)
        self.total.update(total)
        if count % RECENT == 1:
            self.recent.clear()
        self.recent.add(record.amount)
        recent = sum(self.recent.get())
        yield Row(record.account, record.seq, count, total, recent, record.region, record.amount)


class Regions(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)
    total = ValueStateDescriptor("total", int)
    accounts = MapStateDescriptor("accounts", str, int)

    def process_element(self, row, ctx):
        count = (self.count.value() or 0) + 1
        total = (self.total.value() or 0) + row.amount
        self.count.update(count)
        self.total.update(total)
        of_account = (self.accounts.get(row.account) or 0) + 1
        if of_account == FORGET:
            self.accounts.remove(row.account)
        else:
            self.accounts.put(row.account, of_account)
        yield Row(row.region, count, total, row.account, row.seq, row.amount, of_account)


def topic_of(servers: str, topic: str) -> KafkaSink:
    records = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_key_field("region")
        .set_value_serialization_schema(JsonRowSerializationSchema.builder().build())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(servers)
        .set_record_serializer(records)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix("soak")
        .build()
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("events")
    parser.add_argument("out")
    parser.add_argument("--files", type=int, default=16, help="input files per epoch")
    parser.add_argument("--bounded", action="store_true", help="end with the input")
    parser.add_argument("--postgres", help="a database for the rows of accounts as well")
    parser.add_argument("--password-from", help="the variable with its password")
    parser.add_argument("--kafka", help="a broker for the rows of regions as well")
    parser.add_argument("--topic", help="where they go there")
    args = parser.parse_args()

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing("1 s")
    records = env.from_files(
        args.events, "json", RECORD, uid="records", max_files_per_epoch=args.files
    )
    accounts = records.key_by("account").process(Accounts(), output_type=ACCOUNT_ROW)
    accounts.uid("accounts").sink_to(FileSink(f"{args.out}/accounts", "json")).uid("account rows")
    if args.postgres:
        table = PostgresSink(args.postgres, table="accounts", password_from=args.password_from)
        accounts.sink_to(table).uid("account table")
    regions = accounts.key_by("region").process(Regions(), output_type=REGION_ROW)
    regions.uid("regions").sink_to(FileSink(f"{args.out}/regions", "json")).uid("region rows")
    if args.kafka:
        regions.sink_to(topic_of(args.kafka, args.topic)).uid("region topic")
    env.execute("soak", bounded=args.bounded)


if __name__ == "__main__":
    main()
