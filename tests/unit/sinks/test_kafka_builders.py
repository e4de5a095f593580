"""What is refused when a Kafka sink is built, and what a sink tells about itself."""

import pickle
import sys

import pytest
from sink_support import POSTS, posts

from turnback import (
    DeliveryGuarantee,
    JsonRowSerializationSchema,
    KafkaRecordSerializationSchema,
    KafkaSink,
    SerializationSchema,
    SimpleStringSchema,
    Types,
)
from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks.kafka_client import Cluster
from turnback.types.columns import Batch

JSON = JsonRowSerializationSchema.builder().build()
TEXTS = Batch(Types.STRING(), ["a", "b"])


def records(value=JSON, **settings):
    builder = KafkaRecordSerializationSchema.builder().set_topic("likes")
    builder.set_value_serialization_schema(value)
    for name, setting in settings.items():
        getattr(builder, name)(setting)
    return builder.build()


def sink_builder():
    builder = KafkaSink.builder().set_bootstrap_servers("localhost:9092")
    return builder.set_record_serializer(records())


# -- what is missing


@pytest.mark.parametrize(
    ("builder", "missing"),
    [
        (KafkaSink.builder(), "set_bootstrap_servers"),
        (KafkaSink.builder().set_bootstrap_servers("localhost:9092"), "set_record_serializer"),
        (
            sink_builder().set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE),
            "set_transactional_id_prefix",
        ),
        (KafkaRecordSerializationSchema.builder(), "set_topic"),
        (
            KafkaRecordSerializationSchema.builder().set_topic("likes"),
            "set_value_serialization_schema",
        ),
    ],
)
def test_a_missing_setting_is_named(builder, missing):
    with pytest.raises(ConfigurationError, match=missing):
        builder.build()


def test_a_missing_client_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigurationError, match=r"KafkaSink needs .*turnback\[kafka\]"):
        sink_builder().build()


# -- what is wrong


@pytest.mark.parametrize("wrong", [None, 7, "", "  ", b"localhost"])
@pytest.mark.parametrize("setting", ["set_bootstrap_servers", "set_transactional_id_prefix"])
def test_texts_of_sinks_are_texts(setting, wrong):
    with pytest.raises(ConfigurationError, match="not empty"):
        getattr(KafkaSink.builder(), setting)(wrong)


@pytest.mark.parametrize("wrong", [None, "exactly-once", 2, KafkaSink])
def test_a_guarantee_is_one_of_three(wrong):
    with pytest.raises(ConfigurationError, match="DeliveryGuarantee"):
        KafkaSink.builder().set_delivery_guarantee(wrong)


def test_a_builder_is_no_record_serializer():
    with pytest.raises(ConfigurationError, match="has to be built"):
        KafkaSink.builder().set_record_serializer(KafkaRecordSerializationSchema.builder())


@pytest.mark.parametrize("wrong", [None, "json", len, SimpleStringSchema])
@pytest.mark.parametrize("part", ["key", "value"])
def test_schemas_are_schemas(part, wrong):
    setting = f"set_{part}_serialization_schema"
    with pytest.raises(ConfigurationError, match=setting):
        getattr(KafkaRecordSerializationSchema.builder(), setting)(wrong)


@pytest.mark.parametrize("which", ["set_topic", "set_key_field"])
def test_names_are_names(which):
    with pytest.raises(ConfigurationError, match=which):
        getattr(KafkaRecordSerializationSchema.builder(), which)("")


def test_there_is_one_key():
    with pytest.raises(ConfigurationError, match="exclude"):
        records(set_key_field="post", set_key_serialization_schema=JSON)


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("bootstrap.servers", "set_bootstrap_servers"),
        ("transactional.id", "set_transactional_id_prefix"),
        ("enable.idempotence", "set_delivery_guarantee"),
        ("value.serializer", "set_record_serializer"),
        ("sasl.jaas.config", "sasl.username"),
    ],
)
def test_properties_that_have_a_method_are_refused(key, instead):
    with pytest.raises(ConfigurationError, match=instead):
        sink_builder().set_property(key, "x")


def test_a_property_is_text():
    with pytest.raises(ConfigurationError, match=r"client\.id"):
        sink_builder().set_property("client.id", ["a"])


def test_a_charset_exists():
    with pytest.raises(ConfigurationError, match="klingon"):
        SimpleStringSchema("klingon")


def test_json_takes_rows_only():
    with pytest.raises(ConfigurationError, match="rows"):
        JsonRowSerializationSchema.builder().with_type_info(Types.STRING())


# -- elements that do not fit


@pytest.mark.parametrize(
    ("schema", "type", "reason"),
    [
        (records(SimpleStringSchema()), POSTS, "writes strings"),
        (records(JSON), Types.STRING(), "writes rows"),
        (
            records(JsonRowSerializationSchema.builder().with_type_info("a int").build()),
            POSTS,
            "with_type_info",
        ),
        (records(set_key_field="user"), POSTS, "no field 'user'"),
    ],
)
def test_elements_that_cannot_be_written_are_refused_by_name(schema, type, reason):
    with pytest.raises(ConfigurationError, match=f"sink 'out'.*{reason}"):
        schema.check(type, "sink 'out'")


# -- records


def test_rows_become_json_and_a_field_the_key():
    found = list(records(set_key_field="post").serialize(posts(("a", 1), (None, 2))))
    assert found == [(b"a", b'{"post":"a","n":1}'), (None, b'{"post":null,"n":2}')]


def test_a_key_that_is_no_text_is_as_in_json():
    assert [key for key, _ in records(set_key_field="n").serialize(posts(("a", 1)))] == [b"1"]


def test_strings_are_encoded_and_without_a_key_there_is_none():
    schema = records(SimpleStringSchema("latin-1"))
    assert list(schema.serialize(Batch(Types.STRING(), ["ä", ""]))) == [
        (None, b"\xe4"),
        (None, b""),
    ]


def test_a_schema_of_the_user_writes_and_deletes():
    class Deletes(SerializationSchema):
        def serialize(self, element):
            return None if element == "b" else element.encode()

    schema = records(Deletes(), set_key_serialization_schema=SimpleStringSchema())
    assert list(schema.serialize(TEXTS)) == [(b"a", b"a"), (b"b", None)]


def test_a_schema_of_the_user_has_to_give_bytes():
    class Gives(SerializationSchema):
        def serialize(self, element):
            return 7

    with pytest.raises(SinkError, match=r"Gives.serialize returned 7"):
        list(records(Gives()).serialize(TEXTS))


def test_a_sink_travels_to_tasks():
    sink = pickle.loads(pickle.dumps(exactly_once()))
    assert sink.describe() == exactly_once().describe()


# -- secrets


def exactly_once():
    builder = sink_builder().set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    builder.set_property("sasl.password", "hunter2").set_property("ssl.key.password", "hunter3")
    return builder.set_transactional_id_prefix("likes-out").build()


def test_nothing_that_is_shown_of_a_sink_holds_a_secret():
    sink = exactly_once()
    shown = f"{sink!r} {sink.describe()} {Cluster('a:1', {'sasl.password': 'hunter2'})!r}"
    assert "hunter" not in shown


def test_secrets_are_hidden_in_what_the_client_says():
    cluster = Cluster("a:1", {"sasl.password": "hunter2", "client.id": "likes"})
    assert cluster.hide("likes: bad hunter2!") == "likes: bad ***!"


def test_what_a_sink_says_of_itself():
    assert exactly_once().describe() == {
        "kind": "kafka",
        "servers": "localhost:9092",
        "topic": "likes",
        "guarantee": "exactly-once",
        "transactional_id_prefix": "likes-out",
    }


@pytest.mark.parametrize("guarantee", list(DeliveryGuarantee))
def test_only_exactly_once_needs_checkpoints(guarantee):
    sink = sink_builder().set_delivery_guarantee(guarantee).set_transactional_id_prefix("p").build()
    assert sink.needs_checkpoints is (guarantee is DeliveryGuarantee.EXACTLY_ONCE)
