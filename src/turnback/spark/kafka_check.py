"""Whether Kafka has what a source reads, asked before the job starts instead of after retries."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec

from turnback.checkpoint.manifest import kafka_positions
from turnback.core.errors import ConfigurationError, SourceError, TurnbackError
from turnback.program.plan import Plan
from turnback.sinks.kafka_client import Cluster
from turnback.sinks.kafka_topics import KafkaTopics
from turnback.snapshot.matching import Match
from turnback.snapshot.snapshot import Snapshot

_LOG = logging.getLogger(__name__)
_WORD = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))""")
_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def check_sources(plan: Plan, job: str, snapshot: Snapshot | None, claims: Match | None) -> None:
    """Refuse sources that cannot be read, before anything is written.

    `snapshot` is what the job goes on from, and `claims` which source gets which position; None if
    each gets its own.
    """
    for source in plan.sources:
        if source.check is None:
            continue
        before: str | None = source.uid
        if claims is not None:
            before = claims.sources.get(source.uid)
            if source.uid in claims.rewound_sources:
                before = None
        position = snapshot.sources.get(before) if snapshot and before else None
        offset = position.offset if position is not None else None
        source.check(f"source {source.uid!r} of job {job!r}", offset)


@dataclass(frozen=True)
class KafkaSourceCheck:
    """Makes sure that servers answer, take the login, and have the topics.

    Needs confluent-kafka and a login that it can do as well as Java's client; otherwise, Spark
    will tell.

    Attributes:
        options: Options of Spark's connector; may hold passwords.
    """

    options: Mapping[str, str] = field(repr=False)

    def __call__(self, name: str, offset: str | None) -> None:
        """Check it.

        Raises:
            ConfigurationError: A topic is missing, the login is refused, or the source would go on
                in a partition that it does not read.
            SourceError: No server answers.
        """
        if find_spec("confluent_kafka") is None:
            return
        properties = client_properties(self.options)
        if properties is None:
            return
        servers = self.options["kafka.bootstrap.servers"]
        encrypted = properties["security.protocol"].endswith("SSL")
        with closing(KafkaTopics(Cluster(servers, properties), name, SourceError)) as topics:
            try:
                found = self._partitions(topics)
            except TurnbackError as error:
                if encrypted and topics.silent:
                    # Java may trust other certificates than this client does.
                    _LOG.info("%s; Spark will try", error)
                    return
                raise
            self._check_positions(name, offset, found, topics)

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
        options = {key.lower(): value.lower() for key, value in self.options.items()}
        if options.get("failondataloss") == "false":
            for text in lost:
                _LOG.warning(
                    "%s: %s; it goes on with what is there, as failOnDataLoss says", name, text
                )
            return
        if gone:
            raise ConfigurationError(
                f"{name}: it goes on in {_names(gone)}, which it does not read, or which is not "
                "there. Read it again; or leave it out of a savepoint: "
                "SavepointWriter.from_existing(...).with_kafka_offsets(uid, without_topics=[...]); "
                'or set_option("failOnDataLoss", "false"), which skips whatever is gone'
            )
        if lost:
            raise ConfigurationError(
                f"{name}: Kafka no longer has what comes next: {'; '.join(lost)}. Start from a "
                "newer checkpoint or savepoint; or choose other offsets in one: "
                "SavepointWriter.from_existing(...).with_kafka_offsets(uid, {...}); or go on with "
                'what is there: set_option("failOnDataLoss", "false")'
            )


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
            f"{place} begins at {low} and the job goes on at {offset}, so {low - offset:,} offsets "
            "are lost, to retention or by deletion"
        )
    if offset > high:
        return (
            f"{place} ends at {high} and the job goes on at {offset}: the topic was made anew, "
            "and what is in it now would be skipped"
        )
    return ""


def _names(partitions: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"partition {number} of topic {topic!r}" for topic, number in partitions)
