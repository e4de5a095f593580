"""What a Kafka source asks Spark's connector for, and what is refused before."""

import json

import pytest

from turnback import Types, WatermarkStrategy
from turnback.connectors import JsonRowDeserializationSchema, SimpleStringSchema
from turnback.connectors.kafka import KafkaOffsetsInitializer, KafkaSource, KafkaTopicPartition
from turnback.connectors.kafka.check import client_properties
from turnback.connectors.kafka.reader import configured_connector, how_to_get
from turnback.connectors.kafka.source import kafka_position
from turnback.connectors.record_source import HEADERS, check_source
from turnback.errors import ConfigurationError, PlanError


def builder():
    made = KafkaSource.builder().set_bootstrap_servers("localhost:9092").set_topics("likes")
    return made.set_value_only_deserializer(SimpleStringSchema())


def test_defaults_are_the_beginning_and_committed_records():
    source = builder().build()
    assert source.options == {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "likes",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    assert (source.bounded, source.type_info) == (False, Types.STRING())


@pytest.mark.parametrize(
    ("start", "options"),
    [
        (KafkaOffsetsInitializer.earliest(), {"startingOffsets": "earliest"}),
        (KafkaOffsetsInitializer.latest(), {"startingOffsets": "latest"}),
        (
            KafkaOffsetsInitializer.timestamp(1000),
            {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
)
def test_where_to_start(start, options):
    assert options.items() <= builder().set_starting_offsets(start).build().options.items()


def test_where_to_start_in_each_partition():
    start = KafkaOffsetsInitializer.offsets({KafkaTopicPartition("a", 0): 5, ("a", 1): 7})
    found = builder().set_starting_offsets(start).build().options["startingOffsets"]
    assert json.loads(found) == {"a": {"0": 5, "1": 7}}


def test_several_topics_or_a_pattern():
    bare = KafkaSource.builder().set_topics("a", "b")
    assert bare._topics == {"subscribe": "a,b"}
    assert KafkaSource.builder().set_topic_pattern("a.*")._topics == {"subscribePattern": "a.*"}
    with pytest.raises(ConfigurationError, match="already"):
        bare.set_topic_pattern("a.*")


def test_properties_and_options_reach_the_connector():
    source = builder().set_property("security.protocol", "SASL_SSL").set_group_id("likes")
    found = source.set_option("minPartitions", 9).set_max_records_per_epoch(100).build().options
    wanted = {
        "kafka.security.protocol": "SASL_SSL",
        "groupIdPrefix": "likes",
        "maxOffsetsPerTrigger": "100",
        "minPartitions": "9",
    }
    assert wanted.items() <= found.items()
    for number in (0, "100", 1.5, True):
        with pytest.raises(ConfigurationError, match="max_records_per_epoch must be a whole"):
            builder().set_max_records_per_epoch(number)


def test_positions_go_to_a_group_if_there_is_one_and_nobody_minds():
    assert builder().build().group is None
    assert builder().set_group_id("likes").build().group == "likes"
    for off in ("false", False):
        kept = builder().set_group_id("likes").set_property("commit.offsets.on.checkpoint", off)
        assert kept.build().group is None
        assert "kafka.commit.offsets.on.checkpoint" not in kept.build().options
    on = builder().set_group_id("likes").set_property("commit.offsets.on.checkpoint", "true")
    assert on.build().group == "likes"


def test_metadata_are_columns_beside_the_value():
    source = builder().set_metadata_columns("timestamp", headers="notes").build()
    assert source.type_info == Types.ROW_NAMED(
        ["value", "timestamp", "notes"], [Types.STRING(), Types.INSTANT(), HEADERS]
    )
    assert source.options["includeHeaders"] == "true"


def test_a_source_shows_no_secrets():
    source = builder().set_property("sasl.jaas.config", "password=hunter2").build()
    assert "hunter2" not in repr(source)


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (KafkaSource.builder(), "set_bootstrap_servers"),
        (KafkaSource.builder().set_bootstrap_servers("a:1"), "set_topics"),
        (
            KafkaSource.builder().set_bootstrap_servers("a:1").set_topics("a"),
            "set_value_only_deserializer",
        ),
        (JsonRowDeserializationSchema.builder(), "type_info"),
    ],
)
def test_a_missing_setting_is_named(made, missing):
    with pytest.raises(ConfigurationError, match=missing):
        made.build()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda b: b.set_bootstrap_servers(None), "non-empty"),
        (lambda b: b.set_topics(), "at least one"),
        (lambda b: b.set_topics(["a"]), "non-empty"),
        (lambda b: b.set_topic_pattern("("), "regular expression"),
        (lambda b: b.set_starting_offsets("earliest"), "KafkaOffsetsInitializer"),
        (
            lambda b: b.set_bounded(KafkaOffsetsInitializer.earliest()),
            "records that exist when it starts",
        ),
        (lambda b: b.set_bounded("latest"), "KafkaOffsetsInitializer"),
        (lambda b: b.set_value_only_deserializer("json"), "from_dataframe"),
        (lambda b: b.set_value_only_deserializer(SimpleStringSchema("latin-1")), "UTF-8"),
        (lambda b: b.set_metadata_columns("size"), "no 'size'"),
        (lambda b: b.set_property("group.id", "x"), "set_group_id"),
        (lambda b: b.set_property("client.id", []), "string"),
        (lambda b: b.set_group_id(7), "non-empty"),
        (lambda b: b.set_property("commit.offsets.on.checkpoint", "yep"), "must be true or false"),
        (lambda b: b.set_property("commit.offsets.on.checkpoint", None), "must be true or false"),
        (lambda b: KafkaOffsetsInitializer.timestamp(-1), "milliseconds"),
        (lambda b: KafkaOffsetsInitializer.timestamp("now"), "milliseconds"),
        (lambda b: KafkaOffsetsInitializer.offsets({}), "by partition"),
        (lambda b: KafkaOffsetsInitializer.offsets({"a": 1}), "KafkaTopicPartition"),
        (lambda b: KafkaOffsetsInitializer.offsets({("a", 0): -5}), "not an offset"),
        (lambda b: KafkaOffsetsInitializer.offsets({("a", True): 5}), "KafkaTopicPartition"),
        (lambda b: KafkaOffsetsInitializer.offsets({("a", -1): 5}), "KafkaTopicPartition"),
        (lambda b: KafkaOffsetsInitializer.offsets({(7, 0): 5}), "KafkaTopicPartition"),
        (lambda b: JsonRowDeserializationSchema.builder().type_info("string"), "rows"),
    ],
)
def test_wrong_settings_are_refused(call, reason):
    with pytest.raises((ConfigurationError, PlanError), match=reason):
        call(KafkaSource.builder())


def test_columns_have_names_of_their_own():
    rows = JsonRowDeserializationSchema.builder().type_info("timestamp bigint").build()
    made = builder().set_value_only_deserializer(rows).set_metadata_columns("timestamp")
    with pytest.raises(ConfigurationError, match="kafka_timestamp"):
        made.build()


# -- from_source

ANY_TIME = WatermarkStrategy.no_watermarks()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("likes", ANY_TIME, "likes"), "takes a KafkaSource"),
        ((builder(), ANY_TIME, "likes"), "takes a KafkaSource"),
        ((builder().build(), None, "likes"), "no_watermarks"),
        ((builder().build(), ANY_TIME, None), "name"),
        ((builder().build(), ANY_TIME, "likes", Types.LONG()), "string, not bigint"),
    ],
)
def test_from_source_says_what_it_takes(arguments, reason):
    with pytest.raises(PlanError, match=reason):
        check_source(*arguments)


# -- the connector


def test_the_connector_is_found_in_sparks_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    package = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
    assert configured_connector({}) is None
    assert configured_connector({"spark.jars.packages": package}) == "spark.jars.packages"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--packages {package} pyspark-shell")
    assert configured_connector({}) == "PYSPARK_SUBMIT_ARGS"


def test_the_connector_is_found_among_sparks_jars(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark-sql-kafka-0-10_2.13-4.2.0.jar"
    jar.touch()
    assert configured_connector({}) == str(jar)


def test_how_to_get_the_connector_names_the_version_of_spark():
    assert "spark-sql-kafka-0-10_2.13:4.1.1" in how_to_get("4.1.1")


# -- positions in savepoints

BEFORE = '{"likes": {"0": 5, "1": 7}, "old": {"0": 3}}'


@pytest.mark.parametrize(
    ("offsets", "without", "after"),
    [
        ({("likes", 1): 2}, (), {"likes": {"0": 5, "1": 2}, "old": {"0": 3}}),
        ({("new", 0): 9}, (), {"likes": {"0": 5, "1": 7}, "old": {"0": 3}, "new": {"0": 9}}),
        (None, ["old"], {"likes": {"0": 5, "1": 7}}),
        ({}, ["likes"], {"old": {"0": 3}}),
        ({("likes", 0): 1}, ["likes", "old"], {"likes": {"0": 1}}),
    ],
)
def test_positions_change_where_they_are_named(offsets, without, after):
    assert json.loads(kafka_position("in", BEFORE, offsets, without)) == after


def test_a_savepoint_without_the_source_gets_its_position():
    place = KafkaTopicPartition("likes", 0)
    assert json.loads(kafka_position("in", None, {place: 4}, ())) == {"likes": {"0": 4}}


@pytest.mark.parametrize(
    ("before", "offsets", "without", "reason"),
    [
        (BEFORE, None, (), "'in' takes offsets by partition"),
        (BEFORE, {}, (), "takes offsets by partition"),
        (BEFORE, {"likes": 3}, (), "not a KafkaTopicPartition"),
        (BEFORE, {("likes", "0"): 3}, (), "not a KafkaTopicPartition"),
        (BEFORE, {("likes", 0): -1}, (), "-1 is not an offset"),
        (BEFORE, {("likes", 0): "3"}, (), "'3' is not an offset"),
        (BEFORE, {("likes", 0): True}, (), "True is not an offset"),
        (BEFORE, 7, ["old"], "takes offsets by partition"),
        (BEFORE, None, ["nowhere"], "no topic 'nowhere' to remove; its topics: 'likes', 'old'"),
        (BEFORE, None, "old", "without_topics must be a list"),
        (BEFORE, None, ["likes", "old"], "no topic left"),
        (None, None, ["likes"], "its topics: none"),
        ('{"index": 3}', {("likes", 0): 1}, (), "not a Kafka"),
    ],
)
def test_positions_that_cannot_be_are_refused(before, offsets, without, reason):
    with pytest.raises(ConfigurationError, match=reason):
        kafka_position("in", before, offsets, without)


# -- asking Kafka before Spark does

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password='


def options(**given):
    return {f"kafka.{key.replace('_', '.')}": value for key, value in given.items()}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"security.protocol": "PLAINTEXT"}),
        (
            options(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="PLAIN",
                sasl_jaas_config=JAAS + r'"b\"c";',
            ),
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "a",
                "sasl.password": 'b"c',
            },
        ),
        (
            options(
                security_protocol="SSL",
                ssl_truststore_type="PEM",
                ssl_truststore_location="/ca.pem",
                ssl_endpoint_identification_algorithm="",
            ),
            {
                "security.protocol": "SSL",
                "ssl.ca.location": "/ca.pem",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
    ],
)
def test_properties_of_java_as_the_other_client_takes_them(given, found):
    assert client_properties(given) == found


@pytest.mark.parametrize(
    "given",
    [
        options(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER"),
        options(security_protocol="SASL_SSL"),
        options(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN"),
        options(security_protocol="SSL", ssl_truststore_location="/trust.jks"),
        options(security_protocol="SSL", ssl_keystore_location="/key.pem"),
    ],
)
def test_what_only_java_can_do_is_left_to_spark(given):
    assert client_properties(given) is None
