"""What is refused when a Kafka sink is built, and what a sink tells about itself."""

import pickle
import sys

import pytest
from sink_support import POSTS, posts

from turnback import Types
from turnback.connectors import JsonRowSerializationSchema, SerializationSchema, SimpleStringSchema
from turnback.connectors.kafka import (
    DeliveryGuarantee,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaTopicSelector,
)
from turnback.connectors.kafka.client import Cluster
from turnback.connectors.kafka.records import staged_records
from turnback.connectors.registry import sink_from_description
from turnback.errors import ConfigurationError, SinkError
from turnback.values.columns import Batch

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
    with pytest.raises(ConfigurationError, match="non-empty"):
        getattr(KafkaSink.builder(), setting)(wrong)


@pytest.mark.parametrize("wrong", [None, "exactly-once", 2, KafkaSink])
def test_a_guarantee_is_one_of_three(wrong):
    with pytest.raises(ConfigurationError, match="DeliveryGuarantee"):
        KafkaSink.builder().set_delivery_guarantee(wrong)


def test_a_builder_is_no_record_serializer():
    with pytest.raises(ConfigurationError, match="call build"):
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
    with pytest.raises(ConfigurationError, match="cannot be used together"):
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
    assert found == [
        ("likes", b"a", b'{"post":"a","n":1}'),
        ("likes", None, b'{"post":null,"n":2}'),
    ]


def test_a_key_that_is_no_text_is_as_in_json():
    assert [key for _, key, _ in records(set_key_field="n").serialize(posts(("a", 1)))] == [b"1"]


def test_strings_are_encoded_and_without_a_key_there_is_none():
    schema = records(SimpleStringSchema("latin-1"))
    assert list(schema.serialize(Batch(Types.STRING(), ["ä", ""]))) == [
        ("likes", None, b"\xe4"),
        ("likes", None, b""),
    ]


def test_a_schema_of_the_user_writes_and_deletes():
    class Deletes(SerializationSchema):
        def serialize(self, element):
            return None if element == "b" else element.encode()

    schema = records(Deletes(), set_key_serialization_schema=SimpleStringSchema())
    assert list(schema.serialize(TEXTS)) == [("likes", b"a", b"a"), ("likes", b"b", None)]


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
        "properties": "sasl.password,ssl.key.password",
    }


@pytest.mark.parametrize("guarantee", list(DeliveryGuarantee))
def test_only_exactly_once_needs_checkpoints(guarantee):
    sink = sink_builder().set_delivery_guarantee(guarantee).set_transactional_id_prefix("p").build()
    assert sink.needs_checkpoints is (guarantee is DeliveryGuarantee.EXACTLY_ONCE)


# -- several topics


class ByPost(KafkaTopicSelector):
    def apply(self, data):
        return f"likes-{data.post}"


def selecting(selector, topics=("likes-a",)):
    builder = KafkaRecordSerializationSchema.builder().set_topic_selector(selector, topics)
    return builder.set_value_serialization_schema(JSON).build()


@pytest.mark.parametrize("selector", [ByPost(), lambda row: f"likes-{row.post}"])
def test_each_element_chooses_its_topic(selector):
    schema = selecting(selector)
    found = [topic for topic, _, _ in schema.serialize(posts(("a", 1), ("b", 2)))]
    assert found == ["likes-a", "likes-b"]
    assert (schema.topics, schema.selects) == (("likes-a",), True)


@pytest.mark.parametrize("schema", [selecting(ByPost()), records(set_key_field="post")])
def test_staged_records_are_the_records(schema):
    batch = posts(("a", 1), ("b", 2))
    assert list(staged_records(schema.staged(batch), "likes")) == list(schema.serialize(batch))


def test_a_staged_record_may_have_neither_key_nor_value():
    class Deletes(SerializationSchema):
        def serialize(self, element):
            return None

    staged = records(Deletes()).staged(TEXTS)
    assert list(staged_records(staged, "t")) == [("t", None, None)] * 2


@pytest.mark.parametrize("wrong", [None, "", 7, b"likes"])
def test_a_selector_returns_names(wrong):
    with pytest.raises(SinkError, match="selector returned"):
        selecting(lambda row: wrong).staged(posts(("a", 1)))


@pytest.mark.parametrize("wrong", [None, "likes", 7, ByPost])
def test_a_selector_is_an_object_or_a_function(wrong):
    with pytest.raises(ConfigurationError, match="takes a KafkaTopicSelector"):
        selecting(wrong)


@pytest.mark.parametrize("wrong", [(), "likes", None, 7, [""], [7]])
def test_a_selector_comes_with_topics(wrong):
    with pytest.raises(ConfigurationError, match="set_topic_selector takes"):
        selecting(ByPost(), wrong)


# -- without the program


def test_a_sink_is_made_anew_with_properties_from_the_environment(monkeypatch):
    monkeypatch.setenv("TURNBACK_KAFKA_SASL_PASSWORD", "hunter2")
    monkeypatch.setenv("TURNBACK_KAFKA_SSL_KEY_PASSWORD", "hunter3")
    made = sink_from_description(exactly_once().describe())
    assert made.prefix == "likes-out"
    assert made._cluster.servers == "localhost:9092"
    assert made._cluster.properties == {"sasl.password": "hunter2", "ssl.key.password": "hunter3"}


def test_what_a_login_needs_is_named(monkeypatch):
    monkeypatch.setenv("TURNBACK_KAFKA_SASL_PASSWORD", "hunter2")
    monkeypatch.delenv("TURNBACK_KAFKA_SSL_KEY_PASSWORD", raising=False)
    with pytest.raises(ConfigurationError, match="variables TURNBACK_KAFKA_SSL_KEY_PASSWORD, or"):
        sink_from_description(exactly_once().describe())


def test_properties_that_are_not_for_the_login_may_be_missing():
    builder = sink_builder().set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    builder.set_property("linger.ms", 5).set_transactional_id_prefix("p")
    assert sink_from_description(builder.build().describe())._cluster.properties == {}


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.NONE, DeliveryGuarantee.AT_LEAST_ONCE])
def test_a_sink_without_transactions_has_nothing_to_settle(guarantee):
    described = sink_builder().set_delivery_guarantee(guarantee).build().describe()
    assert sink_from_description(described) is None


@pytest.mark.parametrize("key", ["servers", "topic", "transactional_id_prefix"])
def test_a_description_is_complete(key):
    described = exactly_once().describe() | {key: ""}
    with pytest.raises(ConfigurationError, match=f"has no {key}"):
        sink_from_description(described)
