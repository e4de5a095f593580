"""Exit codes, and values as people read them."""

import pytest

from turnback import errors
from turnback.cli.context import ExitCode, exit_code
from turnback.cli.output import (
    Column,
    Output,
    json_value,
    local_time,
    printable,
    time_ago,
    utc_time,
)
from turnback.cli.parameters import find_state
from turnback.errors import StateError, TurnbackError


def every_error():
    found = [TurnbackError]
    for kind in found:
        found += kind.__subclasses__()
    return {kind for kind in found if kind.__module__ == errors.__name__}


CODES = {
    "NotFoundError": 3, "JobNotFoundError": 3, "CheckpointNotFoundError": 3, "StateError": 3,
    "IncompatibleStateError": 5, "AmbiguousJobError": 2, "ConfigurationError": 2, "PlanError": 2,
    "UnsupportedTypeError": 2, "JobInUseError": 4, "JobNotRunningError": 4, "FencedError": 4,
    "AlreadyExistsError": 4, "StillNeededError": 4, "CorruptFileError": 6, "FormatVersionError": 6,
    "StorageError": 7, "StorageNotSharedError": 7, "LocalStoreError": 7,
    "CommitStateUnknownError": 7, "CheckpointTimeoutError": 8,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(every_error(), key=lambda kind: kind.__name__))
def test_every_error_has_its_exit_code(kind):
    assert exit_code(kind("x")) == CODES.get(kind.__name__, 1)


def test_an_interrupt_and_anything_else():
    assert exit_code(KeyboardInterrupt()) == 130
    assert exit_code(ZeroDivisionError()) == 1


def test_every_exit_code_has_a_meaning():
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)


@pytest.mark.parametrize(("age", "shown"), [(-5_000, "now"), (999, "now"), (59_999, "59 s ago")])
def test_how_long_ago(age, shown):
    assert time_ago(1_000_000_000_000 - age, 1_000_000_000_000) == shown


def test_times_that_no_calendar_has():
    assert utc_time(0) == "1970-01-01T00:00:00Z"
    assert utc_time(2**63) == f"{2**63} ms"
    assert local_time(-(2**63), 0) == f"{-(2**63)} ms"


def test_times_of_today_have_no_date():
    noon = 1_700_000_000_000
    assert len(local_time(noon, noon)) == len("12:00:00")
    assert len(local_time(noon - 2 * 86_400_000, noon)) == len("2026-01-01 12:00")


@pytest.mark.parametrize("bad", ["\x1b[2J", "a\nb", "\x9b31m", "\u202e", "\r", "\x00"])
def test_nothing_moves_the_cursor(bad):
    shown = printable(f"x{bad}y")
    assert shown.isprintable()
    assert shown.startswith("x") and shown.endswith("y")


def test_other_scripts_are_left_alone():
    assert printable("naïve 日本語 🙂 a\u00a0b") == "naïve 日本語 🙂 a\u00a0b"


def test_a_plain_table_has_a_line_for_each_record(capsys):
    rows = [["a", 1], ["longer\nname", None], ["", 22]]
    Output().table(["name", Column("size", right=True)], rows)
    assert capsys.readouterr().out.splitlines() == [
        "NAME         SIZE",
        "a               1",
        "longer name     -",
        "-              22",
    ]


def test_fields_without_a_value_are_left_out(capsys):
    Output().fields([("a", "1"), ("long name", None), ("bc", 0)])
    assert capsys.readouterr().out.splitlines() == ["a   1", "bc  0"]


def test_messages_go_to_stderr(capsys):
    Output(json=True).message("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_values_of_spark_become_plain():
    from datetime import date
    from decimal import Decimal

    from pyspark.sql import Row

    row = Row(a=1, b=Row(c=b"\x01", d=[date(2026, 1, 2), None]))
    assert json_value(row) == {"a": 1, "b": {"c": "0x01", "d": ["2026-01-02", None]}}
    assert json_value({"k": Decimal("1.50")}) == {"k": "1.50"}
    assert json_value({1: "x"}) == [[1, "x"]]


IDS = [("count", "total"), ("a/b", "c"), ("other", "total")]


@pytest.mark.parametrize(
    ("given", "id"), [("count/total", IDS[0]), ("a/b/c", IDS[1]), ("c", IDS[1])]
)
def test_a_state_is_found(given, id):
    assert find_state(given, IDS, "it") == id


@pytest.mark.parametrize(
    ("given", "said"),
    [("total", "other/total"), ("cont/total", "count"), ("x", "a/b/c"), ("", "a/b/c")],
)
def test_a_state_that_is_not_there_or_is_there_twice(given, said):
    with pytest.raises(StateError, match=said):
        find_state(given, IDS, "it")
