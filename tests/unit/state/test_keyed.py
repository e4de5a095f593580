from __future__ import annotations

import pytest

from turnback.errors import StateError
from turnback.functions.descriptors import ListStateDescriptor, ValueStateDescriptor
from turnback.state.backend import KeyedStateBackend
from turnback.state.delta import DeltaBuilder
from turnback.state.schema import KeySchema
from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import Types


@pytest.fixture
def backend():
    return KeyedStateBackend("op", KeyCodec((Types.STRING(), Types.LONG()), True), 128)


class EmptyStore:
    def get(self, key):
        return None

    def get_many(self, keys):
        return [None] * len(keys)

    def scan(self, prefix):
        return iter(())


def test_one_name_is_one_handle(backend):
    one = backend.register(ValueStateDescriptor("s", int))
    assert backend.register(ValueStateDescriptor("s", Types.LONG())) is one


@pytest.mark.parametrize("other", [ValueStateDescriptor("s", str), ListStateDescriptor("s", int)])
def test_one_name_for_two_states_is_refused(backend, other):
    backend.register(ValueStateDescriptor("s", int))
    with pytest.raises(StateError, match="'op' has two different states named 's'"):
        backend.register(other)


def test_schemas_say_how_the_stream_is_keyed(backend):
    backend.register(ValueStateDescriptor("s", int))
    (schema,) = backend.schemas()
    assert schema.id == ("op", "s")
    assert schema.key == KeySchema(("string", "long"), True)


def test_values_cannot_be_read_before_processing_has_begun(backend):
    handle = backend.register(ValueStateDescriptor("s", int))
    backend.key = ("a", 1)
    with pytest.raises(StateError, match="before processing began"):
        handle.value()


def test_begin_forgets_what_the_epoch_before_did(backend):
    handle = backend.register(ValueStateDescriptor("s", int))
    backend.begin(EmptyStore(), 1)
    backend.key = ("a", 1)
    handle.update(5)
    backend.begin(EmptyStore(), 2)
    backend.key = ("a", 1)
    assert handle.value() is None
    builder = DeltaBuilder()
    backend.drain(builder)
    assert builder.build() is None


def test_rows_land_in_the_group_of_their_key(backend):
    handle = backend.register(ValueStateDescriptor("s", int))
    backend.begin(EmptyStore(), 1)
    backend.key = ("a", 1)
    handle.update(5)
    builder = DeltaBuilder()
    backend.drain(builder)
    group = KeyCodec((Types.STRING(), Types.LONG()), True).group(("a", 1), 128)
    assert builder.build()[1:] == (1, group, group, ("op",))


@pytest.mark.parametrize("groups", [0, 32769])
def test_the_number_of_key_groups_is_bounded(groups):
    with pytest.raises(StateError, match="1 to 32768"):
        KeyedStateBackend("op", KeyCodec((Types.STRING(),), True), groups)
