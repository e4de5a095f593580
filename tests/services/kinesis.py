"""A server that speaks Kinesis: moto, never AWS itself."""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from services.process import Restartable, accepts, free_port, started

KEYS = ("turnback", "turnback-kinesis-secret")
REGION = "us-east-1"
MIDDLE = 1 << 127
_names = count(1)


class KinesisServer(Restartable):
    """A running server, which forgets everything when it ends."""

    def is_ready(self) -> bool:
        return accepts(self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": KEYS[0], "aws_secret_access_key": KEYS[1]}
        return boto3.client("kinesis", endpoint_url=self.url, region_name=REGION, **keys)

    def create_stream(self, shards: int = 1) -> str:
        """Create a stream and return its name."""
        name = f"stream-{next(_names)}"
        self.client().create_stream(StreamName=name, ShardCount=shards)
        return name

    def write(self, stream: str, values: Sequence[str], at: int = 0) -> list[str]:
        """Write records to the shard of a hash key; return their sequence numbers."""
        client, numbers = self.client(), []
        for low in range(0, len(values), 500):
            records = [
                {"Data": value.encode(), "PartitionKey": "k", "ExplicitHashKey": str(at)}
                for value in values[low : low + 500]
            ]
            answer = client.put_records(StreamName=stream, Records=records)
            assert answer["FailedRecordCount"] == 0
            numbers += [record["SequenceNumber"] for record in answer["Records"]]
        return numbers

    def shards(self, stream: str) -> list[str]:
        return [s["ShardId"] for s in self.client().list_shards(StreamName=stream)["Shards"]]

    def order(self, **what: Any) -> None:
        """See `kinesis_server`."""
        request = urllib.request.Request(f"{self.url}/turnback", json.dumps(what).encode())
        urllib.request.urlopen(request, timeout=10).close()


@contextmanager
def kinesis_server() -> Iterator[KinesisServer]:
    """Run a server."""
    port, program = free_port(), Path(__file__).with_name("kinesis_server.py")
    with tempfile.TemporaryDirectory(prefix="turnback-kinesis-") as name:
        command = [sys.executable, program, str(port)]
        with started(KinesisServer(port, Path(name), command)) as server:
            yield server
