from __future__ import annotations

import itertools

import pytest

from turnback.functions.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from turnback.state.schema import component, split_sub, state_prefix, wrap, wrapped_size
from turnback.values.typeinfo import Types


def test_no_component_is_a_prefix_of_another():
    data = [b"", b"\0", b"\0\0", b"a", b"ab", b"a" * 120, b"a" * 121, b"a" * 122, b"\xff" * 33]
    for one, other in itertools.permutations(map(component, data), 2):
        assert not one.startswith(other)


def test_the_longest_store_key_fits_lmdb():
    assert 10 + 2 * max(len(component(b"k" * n)) for n in range(200)) <= 511


def test_a_long_map_key_is_read_back_from_the_value():
    for sub in (b"", b"short", b"x" * 120, b"x" * 121, b"x" * 100_000):
        value = wrap(sub, b"value") if wrapped_size(sub) else b"value"
        assert split_sub(component(sub), value) == (sub, b"value")
        assert value[wrapped_size(sub) :] == b"value"


def test_state_prefixes_differ():
    names = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "c")]
    assert len({state_prefix(*n) for n in names}) == len(names)


ODD = [
    "",
    "\0",
    "\0\0",
    "é",
    "e\u0301",
    "x" * 117,
    "x" * 118,
    "x" * 119,
    "x" * 400,
    "y" * (1 << 20),
]


@pytest.mark.slow
def test_odd_keys_and_map_keys_round_trip(job):
    j = job(
        ValueStateDescriptor("value", Types.STRING()),
        ListStateDescriptor("list", Types.STRING()),
        MapStateDescriptor("map", Types.STRING(), Types.STRING()),
    )

    def write(key):
        def step(h):
            h["value"].update(key)
            h["list"].add_all([key, "end"])
            h["map"].put_all(dict.fromkeys(ODD, key))

        return step

    def read(h):
        return h["value"].value(), h["list"].get(), dict(h["map"].items()), h["map"].get(ODD[-1])

    j.run([(key, write(key)) for key in ODD])
    for _ in range(2):
        found = j.run([(key, read) for key in ODD])
        assert found == [(k, [k, "end"], dict.fromkeys(ODD, k), k) for k in ODD]
        j.merge(j.files, final=True)
        j.root = j.root.with_name("elsewhere")
    j.run([(key, lambda h: [h["list"].clear(), h["map"].clear()]) for key in ODD[::2]])
    found = j.run([(key, lambda h: (h["list"].get(), len(h["map"].items()))) for key in ODD])
    assert found == [([], 0) if i % 2 == 0 else ([k, "end"], len(ODD)) for i, k in enumerate(ODD)]
