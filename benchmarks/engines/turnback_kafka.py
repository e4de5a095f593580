"""Turnback writing a stream to a topic of Kafka exactly once."""

from __future__ import annotations

import time
from importlib.metadata import version

from benchmarks.engines import arguments, kafka_topic, spark_query, spark_session, turnback_job
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import Result, check
from benchmarks.window_dataset import SPARK_SCHEMA, WindowDataset
from benchmarks.workload import PARALLELISM
from turnback import StreamExecutionEnvironment
from turnback.connectors import JsonRowSerializationSchema
from turnback.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink

EXACTLY_ONCE = "turnback-kafka"


def sink(topic: str) -> KafkaSink:
    records = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_key_field("post")
        .set_value_serialization_schema(JsonRowSerializationSchema.builder().build())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(kafka_topic.servers())
        .set_record_serializer(records)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(f"sink-of-{topic}")
        .build()
    )


def run(given: arguments.Arguments[WindowDataset], topic: str) -> Result:
    workload = given.dataset.workload
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    with turnback_job.local_directory("rocksdb") as local:
        env = StreamExecutionEnvironment.get_execution_environment(
            {"state.backend.local-dir": str(local)}, spark=spark, root=given.scratch / "turnback"
        )
        env.set_parallelism(PARALLELISM).enable_checkpointing("10 ms")
        frame = spark_query.read(spark, given.dataset.batch_files, SPARK_SCHEMA)
        env.from_dataframe(frame, uid="events").sink_to(sink(topic)).uid("out")
        report = env.execute("bench", bounded=True)
        end = time.time()
    timer.wait()
    check("batches", len(timer.seconds), workload.batches)
    kafka_topic.check_topic(topic, given.dataset)
    return Result(
        engine=given.variant,
        records=workload.counted_records,
        seconds=(kafka_topic.seconds_until(end, timer, workload.warmup_batches),),
        checkpoints=report.checkpoints,
        versions={
            "turnback": version("turnback"),
            "confluent-kafka": version("confluent-kafka"),
            **spark_query.versions(spark),
        },
    )


if __name__ == "__main__":
    parsed = arguments.parse_with(__doc__ or "", (EXACTLY_ONCE,), WindowDataset.load)
    with kafka_topic.new_topic() as made:
        run(parsed, made).print()
