"""Spark writing a stream to a topic of Kafka with its own connector, at least once, in the JVM."""

from __future__ import annotations

import time

from pyspark.sql import functions as sf

from benchmarks.engines import arguments, kafka_topic, spark_query, spark_session
from benchmarks.engines.batch_timer import BatchTimer
from benchmarks.result import Result, check
from benchmarks.window_dataset import SPARK_SCHEMA, WindowDataset

AT_LEAST_ONCE = "spark-kafka"


def run(given: arguments.Arguments[WindowDataset], topic: str) -> Result:
    workload = given.dataset.workload
    spark = spark_session.start(given.variant, given.scratch)
    timer = BatchTimer()
    spark.streams.addListener(timer)
    query = (
        spark_query.read(spark, given.dataset.batch_files, SPARK_SCHEMA)
        .select(sf.col("post").alias("key"), sf.to_json(sf.struct("*")).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka_topic.servers())
        # As Turnback's sink does by default.
        .option("kafka.compression.type", "lz4")
        .option("kafka.linger.ms", "20")
        .option("topic", topic)
        .option("checkpointLocation", str(given.scratch / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    end = time.time()
    timer.wait()
    check("batches", len(timer.seconds), workload.batches)
    kafka_topic.check_topic(topic, given.dataset)
    return Result(
        given.variant,
        workload.counted_records,
        (kafka_topic.seconds_until(end, timer, workload.warmup_batches),),
        len(timer.seconds),
        spark_query.versions(spark),
    )


if __name__ == "__main__":
    parsed = arguments.parse_with(__doc__ or "", (AT_LEAST_ONCE,), WindowDataset.load)
    with kafka_topic.new_topic() as made:
        run(parsed, made).print()
