"""What the driver makes of the reports of executors."""

from __future__ import annotations

import pytest

from turnback.driver.executors import ExecutorReport, compare, versions
from turnback.errors import ConfigurationError

OURS = {"Python": "3.11.7", "turnback": "0.1.0", "pyarrow": "20.0.0"}


def test_equal_versions_pass():
    compare(OURS, [ExecutorReport("a", OURS), ExecutorReport("b", {**OURS, "Python": "3.11.2"})])


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({"Python": "3.12.1"}, "Python 3.12.1 instead of 3.11.7"),
        ({"turnback": "0.2.0"}, "turnback 0.2.0 instead of 0.1.0"),
        ({"pyarrow": None}, "pyarrow missing instead of 20.0.0"),
    ],
)
def test_other_versions_are_refused_with_host_and_package(theirs, named):
    reports = [ExecutorReport("a", OURS), ExecutorReport("node-7", {**OURS, **theirs})]
    with pytest.raises(ConfigurationError, match=f"node-7 does not have.*: {named}\\."):
        compare(OURS, reports)


def test_a_storage_that_is_not_shared_is_what_counts():
    report = ExecutorReport("a", {}, "a does not share the storage")
    with pytest.raises(ConfigurationError, match=r"^a does not share the storage$"):
        compare(OURS, [report])


def test_this_process_has_all_that_turnback_needs():
    found = versions()
    assert {"Python", "turnback", "pyarrow", "msgspec"} <= set(found)
    assert None not in found.values()
