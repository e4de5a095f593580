"""Which elements share state is decided by what is stored, not by what Python finds equal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import KeyedProcessFunction, ValueStateDescriptor
from turnback.errors import ElementTypeError

NEW_YORK = ZoneInfo("America/New_York")
START = datetime(2021, 11, 7, 4, 30, tzinfo=UTC)


@dataclass(eq=False)
class Place:
    name: str
    number: int


class Count(KeyedProcessFunction):
    seen = ValueStateDescriptor("seen", int)

    def process_element(self, value, ctx):
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield repr(ctx.get_current_key()), seen


def counts(tmp_path, key, key_type, numbers, parallelism=1):
    env = environment(parallelism)
    keyed = source(env, "src", "n bigint").key_by(key, key_type=key_type)
    sink = collected(keyed.process(Count(), "key string, seen bigint"), "out")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=1, backend="hashmap")
    for epoch in numbers:
        engine.epoch({"src": [(n,) for n in epoch]})
    return [tuple(row) for row in sink.results]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_hour_that_winter_time_repeats(tmp_path, parallelism):
    """One clock time, two instants: Python finds them equal, and they are two keys."""
    seen = counts(
        tmp_path,
        lambda row: (START + timedelta(hours=row.n)).astimezone(NEW_YORK),
        datetime,
        [[1, 2, 1, 2], [1], [2]],
        parallelism,
    )
    assert sorted(n for _, n in seen) == [1, 1, 2, 2, 3, 3]
    assert len({key for key, _ in seen}) == 2


def test_equal_keys_of_a_class_without_equality(tmp_path):
    seen = counts(tmp_path, lambda row: Place("x", row.n % 2), Place, [[1, 3, 2, 5], [7]])
    assert [n for _, n in seen] == [1, 2, 1, 3, 4]
    assert seen[0][0] == repr(Place("x", 1))


@pytest.mark.parametrize("numbers", [[1], [0, 1], [1, 0]])
def test_a_key_of_another_type_is_refused_whatever_came_before(tmp_path, numbers):
    with pytest.raises(ElementTypeError, match="does not match"):
        counts(tmp_path, lambda row: True if row.n else 1, int, [numbers])
