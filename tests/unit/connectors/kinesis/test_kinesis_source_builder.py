from __future__ import annotations

import pytest

from turnback.connectors import JsonRowDeserializationSchema, SimpleStringSchema
from turnback.connectors.kinesis import KinesisOffsetsInitializer, KinesisSource
from turnback.errors import ConfigurationError
from turnback.values.typeinfo import Types


def builder():
    made = KinesisSource.builder().set_stream("likes")
    return made.set_value_only_deserializer(SimpleStringSchema())


def test_options_have_what_was_set_and_keys_that_nobody_sees():
    source = builder().set_region("eu-central-1").set_endpoint("http://localhost:4566")
    source = source.set_credentials("key-1", "secret-1", "token-1").set_max_records_per_epoch(7)
    start = KinesisOffsetsInitializer.sequence_numbers({"shardId-0": "123"})
    source = source.set_starting_offsets(start).build()
    assert source.options == {
        "stream": "likes",
        "region_name": "eu-central-1",
        "endpoint_url": "http://localhost:4566",
        "aws_access_key_id": "key-1",
        "aws_secret_access_key": "secret-1",
        "aws_session_token": "token-1",
        "start": '["sequence_numbers", {"shardId-0": "123"}]',
        "max_records": "7",
        "fail_on_data_loss": "true",
    }
    for shown in (repr(source), repr(source.source_check())):
        assert "secret-1" not in shown
        assert "token-1" not in shown


def test_metadata_become_columns():
    source = builder().set_metadata_columns("shard", sequence_number="number").build()
    assert source.type_info == Types.ROW_NAMED(
        ["value", "shard", "number"], [Types.STRING(), Types.STRING(), Types.STRING()]
    )


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (KinesisSource.builder(), "set_stream"),
        (KinesisSource.builder().set_stream("a"), "set_value_only_deserializer"),
    ],
)
def test_a_missing_setting_is_named(made, missing):
    with pytest.raises(ConfigurationError, match=missing):
        made.build()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda b: b.set_stream(""), "non-empty"),
        (lambda b: b.set_stream("arn:aws:kinesis:eu-west-1:1:stream/likes"), "such as 'likes'"),
        (lambda b: b.set_region(None), "non-empty"),
        (lambda b: b.set_endpoint("localhost:4566"), "not a URL"),
        (lambda b: b.set_credentials("a", ""), "aws_secret_access_key must be a non-empty string"),
        (lambda b: b.set_credentials("a", "b", 7), "aws_session_token must be a non-empty string"),
        (lambda b: b.set_starting_offsets("earliest"), "KinesisOffsetsInitializer"),
        (lambda b: b.set_bounded("latest"), "KinesisOffsetsInitializer"),
        (lambda b: b.set_bounded(KinesisOffsetsInitializer.earliest()), "when it starts"),
        (lambda b: b.set_value_only_deserializer("json"), "SimpleStringSchema"),
        (lambda b: b.set_metadata_columns("offset"), "available: stream, shard"),
        (lambda b: b.set_max_records_per_epoch(0), "max_records_per_epoch"),
        (lambda b: b.set_max_bytes_per_epoch(0), "max_bytes_per_epoch"),
        (lambda b: b.set_max_bytes_per_epoch("much"), "max_bytes_per_epoch"),
        (lambda b: b.set_fail_on_data_loss("no"), "True or False"),
        (lambda b: KinesisOffsetsInitializer.timestamp("now"), "milliseconds"),
        (lambda b: KinesisOffsetsInitializer.sequence_numbers({}), "by shard"),
        (lambda b: KinesisOffsetsInitializer.sequence_numbers({"a": 5}), "string of digits"),
        (lambda b: KinesisOffsetsInitializer.sequence_numbers({"": "5"}), "non-empty"),
    ],
)
def test_wrong_settings_are_refused(call, reason):
    with pytest.raises(ConfigurationError, match=reason):
        call(KinesisSource.builder())


def test_columns_have_names_of_their_own():
    rows = JsonRowDeserializationSchema.builder().type_info("timestamp bigint").build()
    made = builder().set_value_only_deserializer(rows).set_metadata_columns("timestamp")
    with pytest.raises(ConfigurationError, match="kinesis_timestamp"):
        made.build()
