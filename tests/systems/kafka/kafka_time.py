"""Runs windows over a topic in several ways on one Spark; prints a line of JSON for each.

`python kafka_time.py SERVERS TOPIC WAYS`, where WAYS is JSON: by name, options of the connector,
whether a task fails once, and what the stream is read as.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from turnback import (
    CollectSink,
    DataStream,
    Duration,
    KeyedProcessFunction,
    OutputTag,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from turnback.connectors import JsonRowDeserializationSchema
from turnback.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from turnback.functions import ProcessWindowFunction
from turnback.windows import SlidingEventTimeWindows, TumblingEventTimeWindows

EVENT = Types.ROW_NAMED(["key", "at", "n"], [Types.STRING(), Types.LONG(), Types.LONG()])
SEEN = Types.ROW_NAMED(
    ["what", "key", "at", "n"], [Types.STRING(), Types.STRING(), Types.LONG(), Types.LONG()]
)
LATE = OutputTag("late", EVENT)
BY_TIME = WatermarkStrategy.for_bounded_out_of_orderness(
    Duration.of_millis(5)
).with_timestamp_assigner("at")


class InOrder(ProcessWindowFunction):
    """Tells in which order the elements of a window have come."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        order = 0
        for element in elements:
            order = (order * 31 + element.n) % 1_000_003
        yield Row("window", key, context.window().end, order)


class Numbered(KeyedProcessFunction):
    """Numbers elements and timers; fails at an element, if there is a file that says so."""

    seen = ValueStateDescriptor("seen", int)

    def __init__(self, failure: str) -> None:
        self.failure = Path(failure)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n == 60 and self.failure.exists():
            self.failure.unlink()
            raise RuntimeError("the test wants it")
        ctx.timer_service().register_event_time_timer(value.at + 7)
        yield self._next(ctx, "element", value.n)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self._next(ctx, "timer", timestamp)

    def _next(self, ctx: Any, what: str, n: int) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        return Row(what, ctx.get_current_key(), self.seen.value(), n)


class Passed(KeyedProcessFunction):
    """Gives what comes, without a look at the time."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        assert ctx.timestamp() is None
        yield value


def read(
    env: StreamExecutionEnvironment, where: tuple[str, str], options: Mapping[str, str], kind: str
) -> DataStream:
    """A stream with timestamps, in one of several ways."""
    if kind == "frame":
        return env.from_dataframe(frame(*where, options), "events").map(
            lambda e: Row(e.key, e.at, e.n), EVENT
        )
    schema = JsonRowDeserializationSchema.builder().type_info(EVENT).build()
    builder = KafkaSource.builder().set_bootstrap_servers(where[0]).set_topics(where[1])
    builder.set_value_only_deserializer(schema).set_bounded(KafkaOffsetsInitializer.latest())
    for key, value in options.items():
        builder.set_option(key, value)
    events = env.from_source(
        builder.build(), WatermarkStrategy.no_watermarks(), "events", uid="events"
    )
    if kind == "shuffled":
        return events.key_by("n").process(Passed(), EVENT).uid("passed")
    return events


def frame(servers: str, topic: str, options: Mapping[str, str]) -> DataFrame:
    """The records as a Spark user reads them, who keeps what tells their partition."""
    stream = SparkSession.builder.getOrCreate().readStream.format("kafka").options(**options)
    stream = stream.option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    records = stream.option("startingOffsets", "earliest").load()
    event = F.from_json(F.col("value").cast("string"), "key string, at bigint, n bigint")
    return records.select("topic", "partition", "offset", event.alias("e")).select("*", "e.*")


def results(
    env: StreamExecutionEnvironment,
    name: str,
    where: tuple[str, str],
    options: Mapping[str, str],
    kind: str,
) -> list[Any]:
    events = read(env, where, options, kind)
    keyed = events.assign_timestamps_and_watermarks(BY_TIME).uid("time").key_by("key")
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(30), Time.milliseconds(10))
    windows = keyed.window(sliding).allowed_lateness(5).side_output_late_data(LATE)
    ordered = windows.process(InOrder(), SEEN).uid("windows")
    late = ordered.get_side_output(LATE)
    late = late.map(lambda e: Row("late", e.key, e.at, e.n), SEEN).uid("late")
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(20))
    counts = keyed.window(tumbling).aggregate(n=count()).uid("counts")
    ends = counts.map(
        lambda w: Row("count", w.key, int(w.window_end.timestamp() * 1000), w.n), SEEN
    ).uid("ends")
    timers = keyed.process(Numbered(f"{name}.fails"), SEEN).uid("timers")
    sink = CollectSink()
    ordered.union(late, ends, timers).sink_to(sink).uid("out")
    env.execute(name, bounded=True)
    return sorted(map(list, sink.results))


def told_apart(env: StreamExecutionEnvironment, records: DataFrame) -> list[bool]:
    """Of DataFrames: whether their partitions are told apart; those that are not earn a warning."""
    frames = [
        records,
        records.where("n > 0").select("at", "offset", "partition", "topic"),
        records.drop("offset"),
        records.withColumn("partition", F.col("partition") + 1),
        records.withColumnRenamed("topic", "of").withColumn("topic", F.lit("other")),
        records.repartition(3),
    ]
    found = []
    for each in frames:
        events = env.from_dataframe(each, "events").assign_timestamps_and_watermarks(BY_TIME)
        events.uid("time").sink_to(CollectSink()).uid("out")
        plan = env.plan()
        (source,) = plan.sources
        assert source.partitioned is not any("'time'" in text for text in plan.warnings)
        found.append(source.partitioned)
        env._graph.clear()
    return found


def main() -> None:
    servers, topic, ways = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(10)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 0))
    for name, (options, fails, kind) in ways.items():
        failure = Path(f"{name}.fails")
        if fails:
            failure.touch()
        found = results(env, name, (servers, topic), options, kind)
        assert not failure.exists(), "no task has failed"
        print(json.dumps([name, found]), flush=True)
    apart = told_apart(env, frame(servers, topic, {}))
    print(json.dumps(["told-apart", apart]), flush=True)


if __name__ == "__main__":
    main()
