from __future__ import annotations

from contextlib import closing

import pytest

from turnback.errors import StateError
from turnback.functions.descriptors import ValueStateDescriptor
from turnback.values.typeinfo import Types

COUNT = ValueStateDescriptor("count", Types.LONG())


def bump(handles):
    value = handles["count"].value()
    handles["count"].update((value or 0) + 1)
    return value


def read(handles):
    return handles["count"].value()


def test_a_value_lives_across_epochs_and_belongs_to_its_key(job):
    j = job(COUNT)
    assert j.run([("a", bump), ("b", bump), ("a", bump)]) == [None, None, 1]
    assert j.run([("a", bump), ("b", read), ("c", read)]) == [2, 1, None]
    assert j.run([("a", read)]) == [3]
    assert j.found == ["home", "rebuilt", "caught-up"]


@pytest.mark.parametrize("remove", [lambda s: s.clear(), lambda s: s.update(None)])
def test_a_removed_value_stays_removed(job, remove):
    j = job(COUNT)
    j.run([("a", bump), ("b", bump)])
    assert j.run([("a", lambda h: (remove(h["count"]), read(h))[1])]) == [None]
    assert j.run([("a", read), ("b", read)]) == [None, 1]


def test_an_epoch_that_is_not_confirmed_leaves_no_trace(job):
    j = job(COUNT)
    j.run([("a", bump)])
    j.run([("a", bump), ("z", bump)], confirm=False)
    assert j.run([("a", bump), ("z", read)]) == [1, None]
    assert j.one("a", read) == 2


def test_a_value_only_read_is_not_written(job):
    j = job(COUNT)
    j.run([("a", bump)])
    j.run([("a", read), ("b", read)])
    assert len(j.files) == 1


def test_falsy_values_are_values(job):
    j = job(COUNT, ValueStateDescriptor("text", str))
    j.one("a", lambda h: (h["count"].update(0), h["text"].update("")))
    assert j.one("a", lambda h: (h["count"].value(), h["text"].value())) == (0, "")


def test_a_value_of_the_wrong_type_names_operator_state_key_and_value(job):
    j = job(COUNT)
    with pytest.raises(StateError, match=r"'count' of operator 'op', key 'bad'.*'x'.*long"):
        j.run([("good", bump), ("bad", lambda h: h["count"].update("x"))])


def test_using_state_without_a_key_says_so(job):
    j = job(COUNT)
    backend, handles = j.backend()
    with closing(j.home(backend)) as home:
        backend.begin(home.store, 1)
        with pytest.raises(StateError, match="without a current key"):
            handles["count"].value()


def test_rows_and_nested_values_come_back_as_they_were(job):
    kind = Types.ROW_NAMED(["n", "tags"], [Types.LONG(), Types.LIST(Types.STRING())])
    j = job(ValueStateDescriptor("row", kind))
    j.one("a", lambda h: h["row"].update((1, ["x", "y"])))
    row = j.one("a", lambda h: h["row"].value())
    assert row == (1, ["x", "y"]) and row.n == 1
