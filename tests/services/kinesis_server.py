"""moto's Kinesis as a server, mended where it differs from what AWS documents: `PORT`.

Closed shards keep their records and end, writes go to open shards, and sequence numbers are long
and grow over all shards. What moto lacks is done on request, with `POST /turnback` and JSON:
`trim` forgets the first records of a shard, `expire` makes all iterators expire, and `throttle`
refuses so many questions for records. A login with the key `wrong` is refused.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import OrderedDict
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID
from moto.core.exceptions import JsonRESTError
from moto.kinesis import models, responses
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

_numbers = itertools.count(496 * 10**53 + 1, 7)
_faults = {"throttle": 0}
_issued: set[str] = set()
_expired: set[str] = set()
_split, _merge = models.Stream.split_shard, models.Stream.merge_shards
_get_records = responses.KinesisResponse.get_records


def put_record(shard: models.Shard, key: str, data: str, explicit_hash_key: str) -> str:
    number = next(_numbers)
    shard.records[number] = models.Record(key, data, number, explicit_hash_key)
    return str(number)


def shard_for_key(stream: models.Stream, key: str, explicit_hash_key: str) -> models.Shard | None:
    hashed = models.md5_hash(key.encode()).hexdigest()
    at = int(explicit_hash_key) if explicit_hash_key else int(hashed, 16)
    shards = (shard for shard in stream.shards.values() if shard.is_open)
    return next((s for s in shards if s.starting_hash <= at <= s.ending_hash), None)


def without_moving(change: Any) -> Any:
    """Split or merge shards whose records stay where they are."""

    def call(stream: models.Stream, *names: str) -> None:
        shards = [stream.shards[name] for name in names if name in stream.shards]
        records = [shard.records for shard in shards]
        for shard in shards:
            shard.records = OrderedDict()
        change(stream, *names)
        for shard, kept in zip(shards, records, strict=True):
            shard.records = kept

    return call


def get_records(response: responses.KinesisResponse) -> Any:
    iterator = response._get_param("ShardIterator")
    if iterator in _expired:
        _expired.discard(iterator)  # moto's iterators are all alike, so the next one is the same
        raise JsonRESTError("ExpiredIteratorException", "Iterator expired.")
    if _faults["throttle"]:
        _faults["throttle"] -= 1
        raise JsonRESTError("ProvisionedThroughputExceededException", "Rate exceeded.")
    answer = _get_records(response)
    name, shard, last = models.decompose_shard_iterator(answer.result["NextShardIterator"])
    found = response.kinesis_backend.streams[name].shards[shard]
    if not found.is_open and int(last) >= found.get_max_sequence_number():
        del answer.result["NextShardIterator"]
    else:
        _issued.add(answer.result["NextShardIterator"])
    return answer


def control(order: dict[str, Any]) -> None:
    if "trim" in order:
        name, shard, number = order["trim"]
        stream = models.kinesis_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].streams[name]
        records = stream.shards[shard].records
        for key in list(records)[:number]:
            del records[key]
    if "expire" in order:
        _expired.update(_issued)
    _faults["throttle"] += order.get("throttle", 0)


def main() -> None:
    models.Shard.put_record = put_record  # type: ignore[method-assign]
    models.Stream.get_shard_for_key = shard_for_key  # type: ignore[method-assign]
    models.Stream.split_shard = without_moving(_split)  # type: ignore[method-assign]
    models.Stream.merge_shards = without_moving(_merge)  # type: ignore[method-assign]
    responses.KinesisResponse.get_records = get_records  # type: ignore[method-assign]
    moto = DomainDispatcherApplication(create_backend_app)

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/turnback":
            control(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))))
            start_response("200 OK", [])
            return [b"{}"]
        if "Credential=wrong/" in environ.get("HTTP_AUTHORIZATION", ""):
            text = b'{"__type": "UnrecognizedClientException", "message": "The token is invalid."}'
            headers = [
                ("Content-Type", "application/x-amz-json-1.1"),
                ("Content-Length", str(len(text))),
            ]
            start_response("400 Bad Request", headers)
            return [text]
        return moto(environ, start_response)

    run_simple("127.0.0.1", int(sys.argv[1]), serve, threaded=False)


if __name__ == "__main__":
    main()
