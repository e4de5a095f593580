"""A real Kafka broker (KRaft, one node), and Spark's connector; their jars are kept in .cache."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from services.jars import fetched_jars, spark_jars
from services.process import free_port, running, until_stopped

_JAVA = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
USER, PASSWORD = "turnback", "s3cret-of-kafka"


class KafkaBroker:
    """A broker that can be stopped and started again; its data stay.

    Attributes:
        servers: Where clients connect to.
        secured: The same for clients that log in with `USER` and `PASSWORD`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._jars = broker_jars()
        plain, secured, controller = free_port(), free_port(), free_port()
        self.servers = f"127.0.0.1:{plain}"
        self.secured = f"127.0.0.1:{secured}"
        self._config = directory / "server.properties"
        listeners = f"PLAINTEXT://{self.servers},SASL_PLAINTEXT://{self.secured}"
        self._config.write_text(_properties(directory / "data", listeners, controller))
        # Never with a dash in front, which would make it an option of the tool.
        cluster = base64.urlsafe_b64encode(b"t" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._config)
        self._running = ExitStack()
        self._pid = 0

    def start(self) -> None:
        command = [*self._command("kafka.Kafka"), self._config]
        process = self._running.enter_context(
            running(command, ready=self._answers, log=self._directory / "kafka.log")
        )
        self._pid = process.pid

    def stop(self) -> None:
        self._running.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        """End the broker as a crash of its machine would."""
        os.kill(self._pid, signal.SIGKILL)
        self._running.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop answering for a while, with connections open."""
        os.kill(self._pid, signal.SIGSTOP)
        try:
            until_stopped(self._pid)
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)

    def create_topic(self, partitions: int = 1, **config: str) -> str:
        """Create a topic with a name of its own."""
        from confluent_kafka.admin import AdminClient, NewTopic

        name = f"topic-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.servers})
        options = {key.replace("_", "."): value for key, value in config.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=options)])[name].result(30)
        return name

    def write(self, topic: str, values: Sequence[str | bytes], **options: object) -> None:
        """Write records, in order."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 1})
        for value in values:
            producer.produce(topic, value, **options)
            producer.poll(0)
        assert producer.flush(30) == 0

    def read(self, topic: str, *, committed: bool = True) -> list[tuple[bytes | None, bytes]]:
        """Keys and values of all records that are there now, as an independent consumer sees."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"verifier-{uuid.uuid4().hex}",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        left, found = set(partitions), []
        while left:
            for message in consumer.consume(5000, timeout=0.05):
                if message.error() is None:
                    found.append((message.key(), message.value()))
                else:
                    left.discard(message.partition())
        consumer.close()
        return found

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            settings = {"bootstrap.servers": self.servers, "log_level": 0}
            return bool(AdminClient(settings).list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def _command(self, program: str) -> list[str | Path]:
        return ["java", *_JAVA, "-cp", f"{self._jars}/*", program]

    def _java(self, program: str, *arguments: str | Path) -> None:
        command = [*self._command(program), *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Run a broker with its data and log below an existing directory."""
    broker = KafkaBroker(directory)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def broker_jars() -> Path:
    """The directory with the jars of the broker."""
    return fetched_jars("kafka.pom.xml", "kafka", "Kafka's")


def connector_jars() -> str:
    """Spark's connector, as `spark.jars` takes it."""
    return spark_jars(fetched_jars("kafka-connector.pom.xml", "kafka", "Kafka's"))


def _properties(data: Path, listeners: str, controller: int) -> str:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    settings: Mapping[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
        "log.dirs": data,
        # tests write records with timestamps of 1970
        "log.retention.ms": -1,
        "auto.create.topics.enable": "false",
        "num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 3,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
