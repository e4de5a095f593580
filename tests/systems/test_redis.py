"""`RedisSink` against a real server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from services.proxy import proxy_to
from services.redis import PASSWORD, RedisServer
from turnback import RedisSink
from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.testing import check_sink
from turnback.testing.trial import Promise
from turnback.types.columns import Batch
from turnback.types.typeinfo import Types

Task, Driver = Callable[..., WriterContext], Callable[..., CommitterContext]
WIDE = Types.ROW_NAMED(
    ["post", "n", "tags", "raw"],
    [Types.STRING(), Types.LONG(), Types.LIST(Types.STRING()), Types.BYTES()],
)


@pytest.fixture
def client(redis: RedisServer) -> Iterator[Any]:
    with redis.connect() as client:
        client.flushall()
        yield client


@pytest.fixture
def make(redis: RedisServer, client: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)

    def sink(**arguments: Any) -> RedisSink:
        given = {"url": redis.url, "key": "post", "password_from": "REDIS_PASSWORD"}
        return RedisSink(**(given | arguments))

    return sink


def write(sink: RedisSink, ctx: WriterContext, *rows: Any) -> None:
    writer = sink.writer(ctx)
    writer.write(Batch(ctx.type, list(rows)))
    assert writer.prepare() is None


def stored(client: Any, key: str) -> dict[str, str]:
    found = {k.decode(): v.decode() for k, v in client.hgetall(key).items()}
    found.pop("turnback_version", None)
    return found


def test_hashes(make: Any, client: Any, task: Task) -> None:
    sink = make(prefix="likes:")
    write(
        sink, task(WIDE), ("a", 1, ["x", "y"], b"\xff\0"), ("b", None, None, None), ("", 3, [], b"")
    )
    assert client.hget("likes:a", "raw") == b"\xff\0"
    assert client.hget("likes:a", "tags") == b'["x","y"]'
    assert client.hget("likes:a", "n") == b"1"
    assert stored(client, "likes:b") == {}
    assert stored(client, "likes:") == {"n": "3", "tags": "[]", "raw": ""}
    # it is replaced as a whole
    write(sink, task(WIDE, epoch=8), ("a", 2, None, None))
    assert stored(client, "likes:a") == {"n": "2"}


def test_strings(make: Any, client: Any, task: Task) -> None:
    write(make(layout="string", values="n"), task(), ("a", 1), ("b", 2), ("a", 3))
    assert client.mget("a", "b") == [b"3", b"2"]
    write(make(layout="string", values="n"), task(epoch=8), ("a", None))
    assert client.mget("a", "b") == [None, b"2"]
    write(make(layout="string", values=["post", "n"], prefix="j:"), task(), ("a", 1))
    assert json.loads(client.get("j:a")) == {"post": "a", "n": 1}


def test_keys_of_several_columns_do_not_collide(make: Any, client: Any, task: Task) -> None:
    kind = Types.ROW_NAMED(["a", "b", "n"], [Types.STRING(), Types.STRING(), Types.LONG()])
    write(make(key=["a", "b"]), task(kind), ("x:y", "z", 1), ("x", "y:z", 2), ("%", "", 3))
    assert stored(client, "x%3Ay:z") == {"n": "1"}
    assert stored(client, "x:y%3Az") == {"n": "2"}
    assert stored(client, "%25:") == {"n": "3"}


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_an_old_value_never_overwrites_a_newer_one(
    make: Any, client: Any, task: Task, layout: str
) -> None:
    sink = make(layout=layout, values="n")

    def value() -> bytes | None:
        found: bytes | None = client.hget("a", "n") if layout == "hash" else client.get("a")
        return found

    write(sink, task(epoch=9), ("a", 9))
    write(sink, task(epoch=8), ("a", 8), ("b", 8))  # a task that was thought to be dead
    assert value() == b"9"
    write(sink, task(epoch=9), ("a", 10))  # the same epoch again
    assert value() == b"10"
    write(sink, task(epoch=10), ("a", 11))
    assert value() == b"11"
    # a job that was turned back: its epochs are older, its attempt is newer
    write(sink, task(attempt=4, epoch=1), ("a", 1))
    assert value() == b"1"
    write(sink, task(attempt=3, epoch=50), ("a", 50))
    assert value() == b"1"
    # beyond the 53 bits that numbers of Lua have
    write(sink, task(attempt=2**22, epoch=2**40 - 1), ("a", 2))
    write(sink, task(attempt=2**22, epoch=2**40 - 2), ("a", 3))
    assert value() == b"2"


def test_writers_that_race_leave_the_newest(make: Any, client: Any, task: Task) -> None:
    def run(epochs: range) -> None:
        for epoch in epochs:
            write(make(), task(epoch=epoch), *((f"k{n}", epoch) for n in range(20)))

    threads = [threading.Thread(target=run, args=(range(n, 60, 3),)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {client.hget(f"k{n}", "n") for n in range(20)} == {b"59"}


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_time_to_live(make: Any, client: Any, task: Task, layout: str) -> None:
    write(make(layout=layout, values="n", ttl=0.3), task(), ("a", 1))
    assert client.exists("a")
    assert 0 < client.pttl("a") <= 300
    time.sleep(0.4)
    assert client.dbsize() == 0


def test_a_prefix_belongs_to_one_job(make: Any, client: Any, task: Task, driver: Driver) -> None:
    sink = make(prefix="likes:")
    sink.check_claim(driver(job_id=""))
    assert client.keys() == []
    sink.claim(driver(job_id=""))  # before the job has an id
    sink.claim(driver())
    write(sink, task(), ("a", 1))
    with pytest.raises(ConfigurationError, match=r"'likes:' in .* belong to job 'likes'"):
        sink.claim(driver("fork"))
    make(prefix="fork:").claim(driver("fork"))
    sink.claim(driver("fork", take_over=True))
    with pytest.raises(ConfigurationError, match="job 'fork' has taken over"):
        write(sink, task(epoch=8), ("a", 2))
    with pytest.raises(ConfigurationError, match="belong to job 'fork'"):
        sink.claim(driver())
    assert stored(client, "likes:a") == {"n": "1"}


def test_what_was_acknowledged_survives_a_crash_of_the_server(
    make: Any, redis: RedisServer, task: Task
) -> None:
    sink = make()
    write(sink, task(), ("a", 1))
    writer = sink.writer(task(epoch=8))
    writer.write(Batch(task().type, [("a", 2)]))
    redis.crash()
    with pytest.raises(SinkError, match="Redis at redis"):
        writer.write(Batch(task().type, [("b", 2)]))
    redis.start()
    write(sink, task(epoch=8), ("a", 2), ("b", 2))
    with redis.connect() as client:
        assert stored(client, "a") == stored(client, "b") == {"n": "2"}


def test_a_lost_reply_fails_the_task_and_the_next_one_writes_the_same(
    make: Any, redis: RedisServer, client: Any, task: Task
) -> None:
    with proxy_to(redis.port) as proxy:
        sink = make(url=redis.url.replace(str(redis.port), str(proxy.port)))
        writer = sink.writer(task())
        writer.write(Batch(task().type, [("a", 1)]))
        proxy.lose_replies(5)
        with pytest.raises(SinkError):
            writer.write(Batch(task().type, [("b", 2)]))
    write(make(), task(task_attempt_id=41), ("a", 1), ("b", 2))
    assert stored(client, "a") == {"n": "1"}
    assert stored(client, "b") == {"n": "2"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"key": "likes"}, "key and values name 'likes', but the stream has 'post', 'n'"),
        ({"values": "likes"}, "key and values name 'likes'"),
        ({"key": ["post", "n"]}, "no column beside the key post, n"),
    ],
)
def test_columns_that_are_not_there(
    make: Any, client: Any, driver: Driver, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make(**arguments).claim(driver())
    assert client.keys() == []


def test_a_null_key_is_refused(make: Any, task: Task) -> None:
    with pytest.raises(SinkError, match="the key 'post' is null in an element of epoch 7"):
        write(make(), task(), (None, 1))


def test_a_key_that_is_something_else(make: Any, client: Any, task: Task) -> None:
    client.rpush("a", "x")
    with pytest.raises(SinkError, match="WRONGTYPE"):
        write(make(), task(), ("a", 1))


def test_a_wrong_password_is_not_told(redis: RedisServer, driver: Driver) -> None:
    url = redis.url.replace("//", "//:not-the-password@")
    with pytest.raises(ConfigurationError, match="password_from") as refused:
        RedisSink(url, key="post").check_claim(driver())
    assert "not-the-password" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_server_that_is_not_there(make: Any, driver: Driver) -> None:
    with pytest.raises(SinkError, match=r"redis://127\.0\.0\.1:1/0"):
        make(url="redis://127.0.0.1:1/0").check_claim(driver())


def test_what_sinks_promise(make: Any, client: Any) -> None:
    def make_empty() -> RedisSink:
        client.flushall()
        sink: RedisSink = make(prefix="p:")
        return sink

    def read(_: RedisSink) -> list[tuple[str, int]]:
        keys = [key.decode() for key in client.scan_iter("p:*")]
        return [(key[2:], int(client.hget(key, "n"))) for key in keys]

    elements = [(f"post {n}", n) for n in range(8)]
    kind = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
    update = (("a", 1), ("a", 2))
    report = check_sink(make_empty, read, type=kind, elements=elements, update=update)
    assert {Promise.NEWER_STAYS, Promise.OWNED} <= set(report.kept)
    assert not report.skipped
