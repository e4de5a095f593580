"""Reading from Kafka on a Spark that has no connector for it."""

import pytest

from turnback import WatermarkStrategy
from turnback.connectors import SimpleStringSchema
from turnback.connectors.kafka import KafkaSource
from turnback.errors import ConfigurationError


def test_a_missing_connector_is_named_with_the_version_to_get(jobs):
    source = KafkaSource.builder().set_bootstrap_servers("localhost:9092").set_topics("likes")
    built = source.set_value_only_deserializer(SimpleStringSchema()).build()
    package = f"spark-sql-kafka-0-10_2.13:{jobs.spark.version}"
    with pytest.raises(ConfigurationError, match=rf"no connector for Kafka.*{package}"):
        jobs.env().from_source(built, WatermarkStrategy.no_watermarks(), "likes")
