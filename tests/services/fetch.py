"""Fetch and build, once, what tests would otherwise wait for: `make test` starts it first.

Whoever needs something of it takes the same lock, and waits or does it alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from _pytest.outcomes import Failed, Skipped

from services.azure import emulator
from services.delta import delta_settings
from services.hdfs import cluster_jars
from services.java import java_options
from services.kafka import broker_jars, connector_jars
from services.s3 import gateway
from services.yarn import server_jars

WANTED: dict[str, Callable[[], object]] = {
    "the archive of Spark's classes": java_options,
    "Kafka's jars": broker_jars,
    "the jars of Spark's Kafka connector": connector_jars,
    "the jars of Spark's Delta reader": delta_settings,
    "HDFS's jars": cluster_jars,
    "YARN's jars": server_jars,
    "the S3 gateway": gateway,
    "Azure's emulator": emulator,
}


def main() -> int:
    with ThreadPoolExecutor(len(WANTED)) as threads:
        begun = {name: threads.submit(fetch) for name, fetch in WANTED.items()}
        for name, done in begun.items():
            try:
                done.result()
                print(f"{name}: there", flush=True)
            except (Skipped, Failed) as problem:  # whoever needs it says so as well
                print(f"{name}: not here: {problem}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
