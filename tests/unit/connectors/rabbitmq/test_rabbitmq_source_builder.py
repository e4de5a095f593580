from __future__ import annotations

import json

import pytest

from turnback.connectors import JsonRowDeserializationSchema, SimpleStringSchema
from turnback.connectors.rabbitmq import RabbitMQOffsetsInitializer, RabbitMQSource
from turnback.errors import ConfigurationError
from turnback.values.typeinfo import Types


def builder():
    made = RabbitMQSource.builder().set_host("rabbit").set_streams("likes")
    return made.set_value_only_deserializer(SimpleStringSchema())


def test_options_have_what_was_set_and_a_password_that_nobody_sees():
    source = builder().set_port(1234).set_virtual_host("shop").set_user_name("ann")
    source = source.set_password("secret-1").set_max_records_per_epoch(7)
    source = source.set_starting_offsets(RabbitMQOffsetsInitializer.offsets({"likes": 5})).build()
    assert source.options == {
        "host": "rabbit",
        "port": "1234",
        "virtual_host": "shop",
        "user": "ann",
        "password": "secret-1",
        "streams": '["likes"]',
        "start": '["offsets", {"likes": 5}]',
        "max_records": "7",
        "fail_on_data_loss": "true",
    }
    assert "secret-1" not in repr(source)
    assert "secret-1" not in repr(source.source_check())


def test_it_begins_with_the_first_message_unless_told_otherwise():
    assert json.loads(builder().build().options["start"]) == ["earliest", None]


def test_metadata_become_columns():
    source = builder().set_metadata_columns("offset", stream="from").build()
    assert source.type_info == Types.ROW_NAMED(
        ["value", "offset", "from"], [Types.STRING(), Types.LONG(), Types.STRING()]
    )


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (RabbitMQSource.builder(), "set_host"),
        (RabbitMQSource.builder().set_host("a"), "set_streams"),
        (RabbitMQSource.builder().set_host("a").set_streams("b"), "set_value_only_deserializer"),
    ],
)
def test_a_missing_setting_is_named(made, missing):
    with pytest.raises(ConfigurationError, match=missing):
        made.build()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda b: b.set_host(""), "non-empty"),
        (lambda b: b.set_port("5552"), "not a port"),
        (lambda b: b.set_port(0), "not a port"),
        (lambda b: b.set_virtual_host(None), "non-empty"),
        (lambda b: b.set_user_name(7), "non-empty"),
        (lambda b: b.set_password(None), "password must be a string"),
        (lambda b: b.set_streams(), "at least one"),
        (lambda b: b.set_streams(["a"]), "non-empty"),
        (lambda b: b.set_starting_offsets("earliest"), "RabbitMQOffsetsInitializer"),
        (lambda b: b.set_bounded("latest"), "RabbitMQOffsetsInitializer"),
        (lambda b: b.set_bounded(RabbitMQOffsetsInitializer.earliest()), "when it starts"),
        (lambda b: b.set_value_only_deserializer("json"), "SimpleStringSchema"),
        (lambda b: b.set_metadata_columns("key"), "available: stream, offset"),
        (lambda b: b.set_max_records_per_epoch(0), "max_records_per_epoch"),
        (lambda b: b.set_fail_on_data_loss("no"), "True or False"),
        (lambda b: RabbitMQOffsetsInitializer.timestamp(-1), "milliseconds"),
        (lambda b: RabbitMQOffsetsInitializer.offsets({}), "by stream"),
        (lambda b: RabbitMQOffsetsInitializer.offsets({"a": -1}), "not an offset"),
        (lambda b: RabbitMQOffsetsInitializer.offsets({"": 1}), "non-empty"),
    ],
)
def test_wrong_settings_are_refused(call, reason):
    with pytest.raises(ConfigurationError, match=reason):
        call(RabbitMQSource.builder())


def test_columns_have_names_of_their_own():
    rows = JsonRowDeserializationSchema.builder().type_info("timestamp bigint").build()
    made = builder().set_value_only_deserializer(rows).set_metadata_columns("timestamp")
    with pytest.raises(ConfigurationError, match="rabbitmq_timestamp"):
        made.build()
