"""The job of the soak on YARN: totals per account, and from these totals per region.

`python yarn_job.py SETTINGS`, where SETTINGS is a file of JSON:
    input: a directory of files, or the servers and the topic of Kafka
    out: a directory for the rows of regions, and, without a database, for those of accounts
    postgres: how to connect to a database for the rows of accounts, if there is one
    hold: while this file is there, tasks wait in the middle of an epoch, and leave a mark beside it
    start: where the job starts, as `execute` takes it
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from soak.job import ACCOUNT_ROW, RECORD, REGION_ROW, Accounts, Regions
from turnback import FileSink, StreamExecutionEnvironment, WatermarkStrategy
from turnback.connectors import JsonRowDeserializationSchema
from turnback.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from turnback.connectors.sql import PostgresSink


class Holding(Accounts):
    """Waits where it is told to."""

    def __init__(self, hold: str) -> None:
        self._hold = Path(hold)

    def process_element(self, record, ctx):
        while self._hold.exists():
            self._hold.with_suffix(".held").touch()
            time.sleep(0.05)
        yield from super().process_element(record, ctx)


def records(env: StreamExecutionEnvironment, given: str | list[str]) -> Any:
    if isinstance(given, str):
        return env.from_files(given, "json", RECORD, uid="records", max_files_per_epoch=16)
    servers, topic = given
    rows = JsonRowDeserializationSchema.builder().type_info(RECORD).build()
    source = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic)
    source.set_starting_offsets(KafkaOffsetsInitializer.earliest())
    source.set_value_only_deserializer(rows)
    timeless = WatermarkStrategy.no_watermarks()
    return env.from_source(source.build(), timeless, "records", uid="records")


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing("500 ms")
    keyed = records(env, settings["input"]).key_by("account")
    accounts = keyed.process(Holding(settings["hold"]), ACCOUNT_ROW).uid("accounts")
    if "postgres" in settings:
        table = PostgresSink(settings["postgres"], table="accounts", password_from="JOB_PASSWORD")
        accounts.sink_to(table).uid("account rows")
    else:
        files = FileSink(f"{settings['out']}/accounts", "json")
        accounts.sink_to(files).uid("account rows")
    regions = accounts.key_by("region").process(Regions(), REGION_ROW).uid("regions")
    regions.sink_to(FileSink(f"{settings['out']}/regions", "json")).uid("region rows")
    env.execute("totals", **settings.get("start", {}))


if __name__ == "__main__":
    main()
