"""A consumer that reads topics all the while, and notes what no reader should ever see."""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from typing import Any, Self

import msgspec
from confluent_kafka import Consumer, TopicPartition

PATIENCE_S = 120.0
_TOLD = 5


class TopicReader:
    """Reads topics from their beginning, in a thread, while somebody writes and is killed.

    Every record is an object with a key and a number. The numbers of a key have to come as 0, 1, 2
    and so on: whatever was read so far is then the beginning of the truth, with nothing twice.

    Args:
        servers: Where the broker is.
        *topics: What to read; the records of a key are in one of them.
        committed: Whether only committed records count.
        key: The field with the key.
        number: The field with the number.

    Attributes:
        seen: How many records have come.
        problems: What was wrong with them; only the first few.
    """

    def __init__(
        self,
        servers: str,
        *topics: str,
        committed: bool = True,
        key: str = "key",
        number: str = "n",
    ) -> None:
        self._key, self._number = key, number
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
        }
        self._topics = topics
        self._next: defaultdict[str, int] = defaultdict(int)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader")
        self.seen = 0
        self.problems: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def until(self, count: int) -> None:
        """Wait until so many records have come."""
        end = time.monotonic() + PATIENCE_S
        while self.seen < count:
            if not self._thread.is_alive() or time.monotonic() > end:
                raise AssertionError(f"{self.seen} of {count} records came: {self.problems}")
            time.sleep(0.01)

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - whoever waits for records is told
            self.problems.append(repr(error))

    def _read(self) -> None:
        consumer = Consumer(self._settings)
        try:
            known = consumer.list_topics(timeout=30).topics
            places = [(topic, n) for topic in self._topics for n in known[topic].partitions]
            consumer.assign([TopicPartition(topic, n, 0) for topic, n in places])
            while not self._done.is_set():
                for message in consumer.consume(5000, timeout=0.05):
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Any) -> None:
        if message.error() is not None:
            self._tell(str(message.error()))
            return
        row = msgspec.json.decode(message.value())
        key, number = row[self._key], row[self._number]
        if number < self._next[key]:
            self._tell(f"{key}: {number} came twice")
        elif number > self._next[key]:
            self._tell(f"{key}: {number} came where {self._next[key]} is due")
        self._next[key] = number + 1
        self.seen += 1

    def _tell(self, problem: str) -> None:
        if len(self.problems) < _TOLD:
            self.problems.append(problem)
