"""Pickling what a user's script defines."""

from __future__ import annotations


def pickle_by_value(value: object) -> bytes:
    """Pickle with the cloudpickle that is part of Spark.

    It pickles functions and classes of the user's script by value, and Spark's workers, which read
    the result, have it too. With plain pickle, what a script defines could not be sent to them.
    """
    from pyspark import cloudpickle  # here, because importing Spark takes a while

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]
