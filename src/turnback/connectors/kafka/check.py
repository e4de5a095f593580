"""Whether Kafka has what a source reads, asked before the job starts instead of after retries."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec

from turnback.connectors.kafka.client import Cluster
from turnback.connectors.kafka.positions import kafka_positions
from turnback.connectors.kafka.topics import KafkaTopics
from turnback.errors import ConfigurationError, SourceError, TurnbackError

_LOG = logging.getLogger(__name__)
_WORD = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))""")
_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True)
class KafkaSourceCheck:
    """Makes sure that servers answer, take the login, and have the topics.

    Needs confluent-kafka and a login that it can do as well as Java's client; otherwise, Spark will
    tell. The options may hold passwords.
    """

    options: Mapping[str, str] = field(repr=False)

    def __call__(self, name: str, offset: str | None) -> list[str]:
        """Check it; gives which partitions were added since."""
        cluster = kafka_cluster(self.options)
        if cluster is None:
            return []
        encrypted = cluster.properties["security.protocol"].endswith("SSL")
        with closing(KafkaTopics(cluster, name, SourceError)) as topics:
            try:
                found = self._partitions(topics)
            except TurnbackError as error:
                if encrypted and topics.silent:
                    # Java may trust other certificates than this client does.
                    _LOG.info("%s; continuing without this check", error)
                    return []
                raise
            self._check_positions(name, offset, found, topics)
            return self._added(offset, found)

    def check_identity(self, name: str, identity: str) -> None:
        """Refuse topics that were made anew, as their ids tell.

        With `failOnDataLoss` false, that is only logged.
        """
        cluster = kafka_cluster(self.options)
        before = known_topic_ids(identity)
        if cluster is None or not before:
            return
        with closing(KafkaTopics(cluster, name, SourceError)) as topics:
            now = topics.ids(before)
        anew = sorted(topic for topic in now if now[topic] != before[topic])
        if not anew:
            return
        names = ", ".join(map(repr, anew))
        what = f"topic {names} was recreated: the offsets of the job belong to the old topic"
        if skips_lost_data(self.options):
            _LOG.warning(
                "%s: %s; it continues at the same offsets, because failOnDataLoss is false",
                name,
                what,
            )
            return
        raise ConfigurationError(
            f"{name}: {what}, and records in the new topic before them would be skipped. Set the "
            "offsets in a savepoint: SavepointWriter.from_existing(...).with_kafka_offsets(uid, "
            "{...}), or without_sources(uid) to read from the beginning; or continue at the "
            'same offsets with set_option("failOnDataLoss", "false")'
        )

    def _added(self, offset: str | None, found: Mapping[str, list[int]]) -> list[str]:
        """What is read from its beginning, because the position knows nothing of it."""
        known = {(topic, number) for topic, number, _ in kafka_positions(offset)}
        added = [
            (topic, number)
            for topic, numbers in found.items()
            for number in numbers
            if known and (topic, number) not in known and reads_topic(self.options, topic)
        ]
        return [f"{_names(added)} added since: reading from the beginning"] if added else []

    def _partitions(self, topics: KafkaTopics) -> dict[str, list[int]]:
        """The partitions by topic: of those that are named, or of all for a pattern."""
        if "subscribe" not in self.options:
            return topics.all()
        names = map(str.strip, self.options["subscribe"].split(","))
        return {name: topics.partitions(name) for name in names}

    def _check_positions(
        self, name: str, offset: str | None, found: Mapping[str, list[int]], topics: KafkaTopics
    ) -> None:
        """Refuse positions that Spark would call gone, without saying what to do.

        With `failOnDataLoss` false, what is lost is only logged.
        """
        positions = kafka_positions(offset)
        gone = [(t, n) for t, n, _ in positions if n not in found.get(t, ())]
        there = [each for each in positions if each[:2] not in gone]
        lost = [text for place in there if (text := _lost(place, topics.ends(*place[:2])))]
        if skips_lost_data(self.options):
            for text in lost:
                _LOG.warning(
                    "%s: %s; it continues with the available records, because "
                    "failOnDataLoss is false",
                    name,
                    text,
                )
            return
        if gone:
            raise ConfigurationError(
                f"{name}: its position contains {_names(gone)}, which it does not read or which "
                "does not exist. Read it again; or remove it from a savepoint: "
                "SavepointWriter.from_existing(...).with_kafka_offsets(uid, "
                "without_topics=[...]); or skip missing records with "
                'set_option("failOnDataLoss", "false")'
            )
        if lost:
            raise ConfigurationError(
                f"{name}: Kafka no longer has the next records: {'; '.join(lost)}. Start from a "
                "newer checkpoint or savepoint; or set other offsets in one: "
                "SavepointWriter.from_existing(...).with_kafka_offsets(uid, {...}); or "
                'continue with the available records: set_option("failOnDataLoss", "false")'
            )


def skips_lost_data(options: Mapping[str, str]) -> bool:
    """Whether a source with these options goes on with what is there, whatever is lost."""
    given = {key.lower(): value.lower() for key, value in options.items()}
    return given.get("failondataloss") == "false"


def known_topic_ids(identity: str | None) -> dict[str, str]:
    """Kafka's ids of topics by name, from the identity of a source; none of others."""
    try:
        found = json.loads(identity or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def kafka_cluster(options: Mapping[str, str]) -> Cluster | None:
    """Where a source with these options reads; None if confluent-kafka cannot log in there."""
    properties = client_properties(options) if find_spec("confluent_kafka") else None
    if properties is None:
        return None
    return Cluster(options["kafka.bootstrap.servers"], properties)


def reads_topic(options: Mapping[str, str], topic: str) -> bool:
    """Whether a source with these options reads a topic."""
    if "subscribe" in options:
        return topic in map(str.strip, options["subscribe"].split(","))
    return re.fullmatch(options.get("subscribePattern", ""), topic) is not None


def client_properties(options: Mapping[str, str]) -> dict[str, str] | None:
    """How librdkafka logs in as Java's client would; None if it cannot, or may do it otherwise."""
    given = {k.removeprefix("kafka."): v for k, v in options.items() if k.startswith("kafka.")}
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    found = {"security.protocol": protocol}
    if protocol.startswith("SASL_"):
        login = _login(given.get("sasl.jaas.config", ""))
        mechanism = given.get("sasl.mechanism", "GSSAPI")
        if mechanism not in _PASSWORDS or not {"username", "password"} <= login.keys():
            return None
        found |= {
            "sasl.mechanism": mechanism,
            "sasl.username": login["username"],
            "sasl.password": login["password"],
        }
    if protocol.endswith("SSL"):
        trusted = given.get("ssl.truststore.location")
        if any(key.startswith("ssl.keystore.") for key in given):
            return None
        if trusted is not None:
            if given.get("ssl.truststore.type", "JKS").upper() != "PEM":
                return None
            found["ssl.ca.location"] = trusted
        if given.get("ssl.endpoint.identification.algorithm") == "":
            found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def _login(jaas: str) -> dict[str, str]:
    """The options in a line of JAAS: `...PlainLoginModule required username="a" password="b";`."""
    return {
        key: re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
        for key, quoted, bare in _WORD.findall(jaas)
    }


def _lost(position: tuple[str, int, int], ends: tuple[int, int]) -> str:
    """What is wrong with a position in a partition that begins and ends at these offsets."""
    (topic, number, offset), (low, high) = position, ends
    place = _names([(topic, number)])
    if offset < low:
        return (
            f"{place} begins at {low} and the job is at {offset}, so {low - offset:,} offsets "
            "are lost to retention or deletion"
        )
    if offset > high:
        return (
            f"{place} ends at {high} and the job is at {offset}: the topic was recreated, and "
            "its new records would be skipped"
        )
    return ""


def _names(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"partition {number} of topic {topic!r}" for topic, number in partitions)
