from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceStreamReader

from turnback.connectors.records import python_source, shares
from turnback.errors import ConfigurationError

COUNTS = st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 10**6), max_size=6)


@given(COUNTS, st.integers(1, 10**6))
def test_an_epoch_reads_as_much_as_it_may(available, most):
    found = shares(available, most)
    assert found.keys() == available.keys()
    assert all(0 <= found[name] <= available[name] for name in available)
    assert sum(found.values()) == min(most, sum(available.values()))


def test_partitions_that_are_behind_get_more():
    assert shares({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
    assert shares({"a": 900, "b": 1}, 1) == {"a": 1, "b": 0}
    assert shares({"a": 9, "b": 1}, None) == {"a": 9, "b": 1}


def test_a_spark_that_does_not_tell_where_an_epoch_begins_is_refused(monkeypatch):
    monkeypatch.delattr(DataSourceStreamReader, "getDefaultReadLimit")
    with pytest.raises(ConfigurationError, match=r"need Spark 4.2 or newer, but this is 4.1.4"):
        python_source("turnback.connectors.rabbitmq.reader", "RabbitMQRecords", "4.1.4")
