"""Orders on their way from the driver to the tasks of an epoch.

Every order is a local property of the Spark job, which Spark gives to each of its tasks, so the
plan of the query is the same in every epoch. Spark sends it with every single task: a large order
goes into a file of the job's storage instead, which each worker reads once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from pyspark import SparkContext, TaskContext

from turnback.state.files import StorageRef, storage_of
from turnback.worker.message import Order, decode_order, encode_order

LARGE = 1 << 20
_PROPERTY = "turnback.order."


@contextmanager
def send_orders(context: SparkContext, orders: Sequence[Order]) -> Iterator[None]:
    """Give orders, one per level, to the tasks of the Spark jobs that this thread runs."""
    with ExitStack() as undo:
        for level, order in enumerate(orders):
            key = f"{_PROPERTY}{level}"
            text = encode_order(order)
            if len(text) > LARGE and not order.storage.inline:
                storage = storage_of(order.storage)
                path = f"state/{order.attempt}/order-{uuid.uuid4().hex}"
                storage.put(path, text.encode())
                undo.callback(storage.delete, path)
                text = json.dumps({"path": path, **vars(order.storage)})
            undo.callback(context.setLocalProperty, key, None)  # type: ignore[arg-type]
            context.setLocalProperty(key, text)
        yield


def read_order(context: TaskContext, level: int) -> Order:
    """The order for the tasks of a level, in one of them."""
    text = context.getLocalProperty(f"{_PROPERTY}{level}")
    assert text is not None, "this task was started by another query"
    return _read_file(text) if text.startswith("{") else decode_order(text)


@lru_cache(maxsize=4)
def _read_file(text: str) -> Order:
    reference = json.loads(text)
    path = reference.pop("path")
    return decode_order(storage_of(StorageRef(**reference)).get(path).decode())
