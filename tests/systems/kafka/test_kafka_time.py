"""Event time of a topic with several partitions, on Spark: results do not depend on epochs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from spark_program import run

from services.kafka import KafkaBroker

pytestmark = pytest.mark.exhaustive

WAYS = {
    "one-epoch": ({}, False, "source"),
    "small-epochs": ({"maxOffsetsPerTrigger": "17"}, False, "source"),
    "failing": ({"maxOffsetsPerTrigger": "29"}, True, "source"),
    "divided": ({"minPartitions": "7", "maxOffsetsPerTrigger": "60"}, False, "source"),
    "behind-a-shuffle": ({"maxOffsetsPerTrigger": "23"}, True, "shuffled"),
    "data-frame": ({"maxOffsetsPerTrigger": "40"}, False, "frame"),
}
SPEEDS = (1, 2, 5)
"""How fast time passes in each partition."""


@pytest.fixture(scope="module")
def found(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory, java: str):
    """What came of every way of running."""
    topic, chosen = kafka.create_topic(len(SPEEDS)), random.Random(5)
    for partition, speed in enumerate(SPEEDS):
        for row in range(40):
            late = 60 if row % 9 == 8 else 0
            at = max(row * speed + chosen.randrange(12) - late, 0)
            event = {"key": chosen.choice("abc"), "at": at, "n": 40 * partition + row}
            kafka.write(topic, [json.dumps(event)], partition=partition)
    program, directory = Path(__file__).parent / "kafka_time.py", tmp_path_factory.mktemp("time")
    printed = run(program, directory, java, kafka.servers, topic, json.dumps(WAYS))
    return dict(map(json.loads, printed.splitlines()))


def test_there_is_something_of_everything(found):
    kinds = {row[0] for row in found["one-epoch"]}
    assert kinds == {"window", "late", "count", "element", "timer"}


def test_partitions_are_told_apart_by_columns_that_are_kafkas_own(found):
    assert found["told-apart"] == [True, True, False, False, False, False]


@pytest.mark.parametrize("way", [way for way in WAYS if way != "one-epoch"])
def test_epochs_restarts_and_tasks_change_nothing(found, way):
    assert found[way] == found["one-epoch"]
