from __future__ import annotations

from contextlib import closing

import pytest

from turnback.errors import StateError
from turnback.functions.descriptors import ListStateDescriptor

LIST = ListStateDescriptor("list", int)


def add(*values):
    return lambda h: [h["list"].add(v) for v in values]


def get(handles):
    return list(handles["list"].get())


def test_elements_keep_the_order_of_their_adds_across_epochs(job):
    j = job(LIST)
    j.run([("a", add(3, 1)), ("b", add(9))])
    assert j.run([("a", add(2)), ("a", get)])[1] == [3, 1, 2]
    for epoch in (255, 256, 65_536, 1 << 33):  # far apart, so that byte order matters
        j.epoch = epoch - 1
        j.run([("a", add(epoch))])
    assert j.run([("a", get), ("b", get)]) == [[3, 1, 2, 255, 256, 65_536, 1 << 33], [9]]


def test_many_adds_in_one_epoch_stay_in_order(job):
    j = job(LIST)
    j.one("a", lambda h: h["list"].add_all(range(1000)))
    assert j.one("a", get) == list(range(1000))


def test_an_append_reads_nothing(job):
    j = job(LIST)
    j.one("a", add(*range(100)))
    backend, handles = j.backend()
    with closing(j.home(backend)) as home:
        backend.begin(home.store, 2)
        backend.scan = backend.get = lambda key: pytest.fail("read the store")
        backend.key = "a"
        add(1)(handles)


def test_clear_hides_what_is_stored_and_what_was_added(job):
    j = job(LIST)
    j.one("a", add(1, 2))
    assert j.one(
        "a", lambda h: (add(3)(h), h["list"].clear(), get(h), add(4)(h), get(h))[2::2]
    ) == (
        [],
        [4],
    )
    assert j.one("a", get) == [4]


def test_update_replaces_the_list(job):
    j = job(LIST)
    j.one("a", add(1, 2))
    j.one("a", lambda h: h["list"].update([7, 8]))
    assert j.one("a", lambda h: list(h["list"])) == [7, 8]
    j.one("a", lambda h: h["list"].update([]))
    assert j.one("a", get) == []


def test_the_list_handed_out_is_the_callers_own(job):
    j = job(LIST)
    j.one("a", add(1))
    assert j.one("a", lambda h: (h["list"].get().append(5), get(h))[1]) == [1]


def test_none_is_refused(job):
    j = job(LIST)
    for act in (
        lambda h: h["list"].add(None),
        lambda h: h["list"].add_all([1, None]),
        lambda h: h["list"].update([None]),
    ):
        with pytest.raises(StateError, match=r"'list'.*cannot hold None"):
            j.one("a", act)
