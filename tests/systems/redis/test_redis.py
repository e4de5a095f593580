"""`RedisSink` against a real server."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from services.proxy import proxy_to
from services.redis import PASSWORD, RedisServer
from turnback.connectors.redis import RedisSink
from turnback.errors import ConfigurationError, FencedError, SinkError
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.testing import check_sink
from turnback.testing.protocol_run import Promise
from turnback.values.columns import Batch
from turnback.values.typeinfo import Types

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


@pytest.fixture
def task(task: Task) -> Task:
    """Makes the context of a task of a job whose directory nobody knows: nothing is claimed."""
    return lambda *type, **changes: task(*type, **{"directory_id": "", **changes})


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


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_of_one_epoch_the_last_of_a_key_counts_however_its_tasks_come(
    make: Any, client: Any, task: Task, layout: str
) -> None:
    sink = make(layout=layout, values="n")
    # Two tasks that write one key: the later one counts.
    write(sink, task(partition=10, task_attempt_id=7), ("a", 1))
    write(sink, task(partition=9, task_attempt_id=8), ("a", 2))
    assert value_of(client, layout, "a") == b"1"
    # A copy of a task that is killed before its end has written nothing that counts.
    write(sink, task(epoch=8, task_attempt_id=40), ("a", 3), ("a", 4))
    copy = sink.writer(task(epoch=8, task_attempt_id=41))
    copy.write(Batch(task().type, [("a", 3)]))
    copy.abort()
    assert value_of(client, layout, "a") == b"4"
    # One that was thought to be dead comes after the one that took its place.
    stray = sink.writer(task(epoch=9, task_attempt_id=99))
    stray.write(Batch(task().type, [("a", 5)]))
    write(sink, task(epoch=9, task_attempt_id=100), ("a", 6))
    assert stray.prepare() is None
    assert value_of(client, layout, "a") == b"6"


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_task_of_an_attempt_that_was_replaced_writes_nothing_any_more(
    make: Any, client: Any, task: Task, driver: Driver, layout: str
) -> None:
    sink = make(values="n", layout=layout)
    sink.acquire_target(driver())
    write(sink, by(task, driver(), epoch=5), ("a", 1))
    strays = [sink.writer(by(task, driver(), epoch=9)) for _ in range(2)]
    strays[0].write(Batch(task().type, [("a", 2), ("b", 2)]))
    sink.acquire_target(
        driver(attempt=4)
    )  # the job was turned back, and has not come to these keys yet
    with pytest.raises(
        SinkError, match=r"attempt 3 can no longer write: attempt 4 or another start has claimed"
    ):
        strays[0].prepare()
    with pytest.raises(
        SinkError, match=r"attempt 3 can no longer write: attempt 4 or another start has claimed"
    ):
        strays[1].write(Batch(task().type, [("c", 3)]))
    assert value_of(client, layout, "a") == b"1"
    assert not client.exists("b", "c")


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
    write(make(layout=layout, values="n", ttl=300.5), task(), ("a", 1))
    assert 0 < client.pttl("a") <= 300_500
    client.flushdb()
    write(make(layout=layout, values="n", ttl=0.05), task(), ("a", 1))
    while client.dbsize():
        time.sleep(0.01)


def test_a_prefix_belongs_to_one_job(make: Any, client: Any, task: Task, driver: Driver) -> None:
    sink = make(prefix="likes:")
    sink.check_target(driver(job_id=""))
    assert client.keys() == []
    sink.acquire_target(driver(job_id=""))  # before the job has an id
    sink.acquire_target(driver())
    write(sink, task(), ("a", 1))
    with pytest.raises(ConfigurationError, match=r"'likes:' in .* belong to job 'likes'"):
        sink.acquire_target(driver("fork"))
    make(prefix="fork:").acquire_target(driver("fork"))
    sink.acquire_target(driver("fork", take_over=True))
    with pytest.raises(ConfigurationError, match=r"job 'fork' in .* has taken over"):
        write(sink, task(epoch=8), ("a", 2))
    with pytest.raises(ConfigurationError, match="belong to job 'fork'"):
        sink.acquire_target(driver())
    assert stored(client, "likes:a") == {"n": "1"}


class Attempts:
    """The attempts that a job directory knows of."""

    def __init__(self, **nonces: str) -> None:
        self._nonces = {int(name.removeprefix("n")): nonce for name, nonce in nonces.items()}

    def nonce_of(self, attempt: int) -> str | None:
        return self._nonces.get(attempt)


def by(task: Task, ctx: CommitterContext, **changes: Any) -> WriterContext:
    """The context of a task of a driver."""
    return task(
        job=ctx.job,
        job_id=ctx.job_id,
        attempt=ctx.attempt,
        nonce=ctx.nonce,
        directory_id=ctx.directory_id,
        **changes,
    )


def value_of(client: Any, layout: str, key: str) -> bytes | None:
    found: bytes | None = client.hget(key, "n") if layout == "hash" else client.get(key)
    return found


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_new_owner_writes_over_what_the_former_one_has_left(
    make: Any, client: Any, task: Task, driver: Driver, layout: str
) -> None:
    sink = make(prefix="p:", values="n", layout=layout)
    sink.acquire_target(driver(attempt=5))
    write(sink, by(task, driver(attempt=5), epoch=100), ("a", 1))
    sink.acquire_target(driver("fork", attempt=0, take_over=True))
    sink.acquire_target(driver("fork", attempt=1))
    write(sink, by(task, driver("fork", attempt=1), epoch=1), ("a", 2))
    assert value_of(client, layout, "p:a") == b"2"
    # and of its own values the newest stays
    write(sink, by(task, driver("fork", attempt=1), epoch=3), ("a", 3))
    write(sink, by(task, driver("fork", attempt=1), epoch=2), ("a", 4))
    assert value_of(client, layout, "p:a") == b"3"
    # handed back, the first job wins again
    sink.acquire_target(driver(attempt=0, take_over=True))
    sink.acquire_target(driver(attempt=6))
    write(sink, by(task, driver(attempt=6), epoch=1), ("a", 5))
    assert value_of(client, layout, "p:a") == b"5"


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_job_that_is_started_afresh_writes_over_what_it_has_left(
    make: Any, client: Any, task: Task, driver: Driver, layout: str
) -> None:
    sink = make(values="n", layout=layout)
    sink.acquire_target(driver(attempt=3, nonce="x", attempts=Attempts(n3="x")))
    write(sink, by(task, driver(attempt=3), epoch=9), ("a", 1))
    new = driver(job_id="id-2", attempt=1, nonce="y", attempts=Attempts(n1="y"))
    sink.acquire_target(driver(job_id="", attempt=0, attempts=Attempts()))
    sink.acquire_target(new)
    write(sink, by(task, new, epoch=1), ("a", 7))
    assert value_of(client, layout, "a") == b"7"


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_task_of_the_former_owner_writes_nothing_any_more(
    make: Any, client: Any, task: Task, driver: Driver, layout: str
) -> None:
    sink = make(values="n", layout=layout)
    sink.acquire_target(driver(attempt=5))
    late = sink.writer(by(task, driver(attempt=5), epoch=7))
    late.write(Batch(task().type, [("other", 0)]))  # it has looked who owns the keys
    sink.acquire_target(driver("fork", attempt=0, take_over=True))
    sink.acquire_target(driver("fork", attempt=1))
    write(sink, by(task, driver("fork", attempt=1), epoch=1), ("a", 2))
    late.write(Batch(task().type, [("a", 1), ("b", 1)]))
    with pytest.raises(ConfigurationError, match=r"job 'fork' in .* has taken over"):
        late.prepare()
    assert value_of(client, layout, "a") == b"2"
    assert not client.exists("other")


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_task_of_an_older_attempt_writes_nothing_under_a_new_claim(
    make: Any, client: Any, task: Task, driver: Driver, layout: str
) -> None:
    sink = make(values="n", layout=layout)
    before = driver(attempt=5, nonce="x")
    sink.acquire_target(before)
    write(sink, by(task, before, epoch=9), ("a", 9))
    late = by(task, before, epoch=8)  # it has not looked yet who owns the keys
    sink.acquire_target(driver(attempt=0, take_over=True))  # by the same job, as it had done before
    with pytest.raises(SinkError, match="attempt 5 can no longer write"):
        write(sink, late, ("a", 8))
    after = driver(attempt=6, nonce="y")
    sink.acquire_target(after)
    with pytest.raises(SinkError, match="attempt 5 can no longer write"):
        write(sink, late, ("a", 8))
    assert value_of(client, layout, "a") == b"9"
    write(sink, by(task, after, epoch=1), ("a", 1))
    assert value_of(client, layout, "a") == b"1"


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_copy_of_a_task_that_is_killed_halfway_leaves_no_older_value_of_its_epoch(
    make: Any, client: Any, task: Task, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr("turnback.connectors.redis._KEYS_AT_ONCE", 1)
    sink = make(values="n", layout=layout)
    write(sink, task(), ("a", 1), ("b", 1), ("a", 2))
    copy = sink.writer(task(task_attempt_id=41))
    copy.write(Batch(task().type, [("a", 1)]))
    copy.abort()  # killed before the rest, such as by Spark, as another attempt was faster
    assert value_of(client, layout, "a") == b"2"
    with client.monitor() as commands:
        write(sink, task(epoch=8), ("a", 3), ("b", 3), ("a", 4))
        client.echo("done")
        seen = list(itertools.takewhile(lambda told: "done" not in told, _told(commands)))
    assert sum("EVALSHA" in told for told in seen) == 2  # each key once
    assert value_of(client, layout, "a") == b"4"


def _told(commands: Any) -> Iterator[str]:
    while True:
        yield commands.next_command()["command"]


def test_a_task_of_a_lost_line_writes_nothing(
    make: Any, client: Any, task: Task, driver: Driver
) -> None:
    sink = make()
    sink.acquire_target(driver(attempt=6, nonce="mine"))
    with pytest.raises(SinkError, match="attempt 6 can no longer write"):
        write(sink, by(task, driver(attempt=6, nonce="lost")), ("a", 1))
    assert not client.exists("a")


def test_a_copy_of_the_job_is_another_job(
    make: Any, client: Any, task: Task, driver: Driver
) -> None:
    sink = make()
    sink.acquire_target(driver())
    copy = driver("copy", job_id="id-1")
    with pytest.raises(ConfigurationError, match="belong to job 'likes'"):
        sink.acquire_target(copy)
    with pytest.raises(ConfigurationError, match="has taken over"):
        write(sink, by(task, copy), ("a", 1))
    assert not client.exists("a")


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_a_restored_job_directory_is_refused_and_may_go_on_if_allowed(
    make: Any, client: Any, task: Task, driver: Driver, layout: str
) -> None:
    sink = make(values="n", layout=layout)
    before = driver(attempt=9, nonce="lost", attempts=Attempts(n9="lost"))
    sink.acquire_target(before)
    write(sink, by(task, before), ("a", 1))
    late = sink.writer(by(task, before, epoch=8))
    late.write(Batch(task().type, [("other", 0)]))
    restored = Attempts(n3="x", n4="y")
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        sink.acquire_target(driver(attempt=0, attempts=restored))
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        sink.acquire_target(driver(attempt=4, nonce="y", attempts=restored))
    sink.acquire_target(driver(attempt=0, attempts=restored, take_over=True))
    after = driver(attempt=4, nonce="y", attempts=restored)
    sink.acquire_target(after)
    write(sink, by(task, after, epoch=1), ("a", 2))
    assert value_of(client, layout, "a") == b"2"
    late.write(Batch(task().type, [("a", 3)]))
    with pytest.raises(SinkError, match="has claimed"):
        late.prepare()
    assert value_of(client, layout, "a") == b"2"


def test_a_backup_from_before_a_fresh_start_is_refused(make: Any, driver: Driver) -> None:
    sink = make()
    sink.acquire_target(driver(attempt=3, nonce="x", attempts=Attempts(n3="x")))
    afresh = {"job_id": "id-2", "attempt": 4, "nonce": "y", "attempts": Attempts(n3="x", n4="y")}
    sink.acquire_target(driver(**afresh))
    restored = {"attempt": 0, "attempts": Attempts(n3="x")}
    for step in (sink.check_target, sink.acquire_target):
        with pytest.raises(ConfigurationError, match=r"attempt 4 .*restored from a backup"):
            step(driver(**restored))
    sink.acquire_target(driver(**restored, take_over=True))
    sink.acquire_target(driver(attempt=4, nonce="z", attempts=Attempts(n3="x", n4="z")))
    sink.check_target(driver(attempt=0, attempts=Attempts(n3="x", n4="z")))


def test_a_job_whose_directory_was_deleted_is_not_taken_for_restored(
    make: Any, client: Any, task: Task, driver: Driver
) -> None:
    """Not even if its first driver dies before it has claimed the keys for the new job."""
    sink = make(values="n")
    old = driver(attempt=3, nonce="x", attempts=Attempts(n3="x"))
    sink.acquire_target(old)
    write(sink, by(task, old), ("a", 1))
    sink.acquire_target(driver(job_id="", attempt=0, attempts=Attempts()))
    with pytest.raises(SinkError, match="attempt 3 can no longer write"):
        write(sink, by(task, old), ("a", 2))
    new = {"job_id": "id-2", "attempts": Attempts(n1="killed")}
    sink.check_target(driver(**new, attempt=0))
    sink.acquire_target(driver(**new, attempt=0))
    after = driver(job_id="id-2", attempt=2, nonce="z", attempts=Attempts(n1="killed", n2="z"))
    sink.acquire_target(after)
    write(sink, by(task, after, epoch=1), ("a", 3))
    assert client.hget("a", "n") == b"3"


def test_a_driver_that_was_replaced_claims_nothing_back(make: Any, driver: Driver) -> None:
    attempts = Attempts(n3="x", n4="y")
    sink = make()
    sink.acquire_target(driver(attempt=4, nonce="y", attempts=attempts))
    with pytest.raises(FencedError, match="attempt 4 has written"):
        sink.acquire_target(driver(attempt=3, nonce="x", attempts=attempts))
    # nor if the job was started afresh in the same directory
    with pytest.raises(FencedError, match="attempt 4 has written"):
        sink.acquire_target(driver(job_id="id-0", attempt=3, nonce="x", attempts=attempts))


@pytest.mark.parametrize("layout", ["hash", "string"])
def test_values_and_notes_of_older_versions_of_turnback(
    make: Any, client: Any, task: Task, driver: Driver, layout: str
) -> None:
    note = {"job": "likes", "directory": driver().job_directory, "job_id": "id-1"}
    client.set("turnback:owner:", json.dumps(note))
    newer = f"{9 << 40:019d}"
    if layout == "hash":
        client.hset("a", mapping={"n": 1, "turnback_version": newer})
    else:
        client.mset({"a": 1, "turnback:version:a": newer})
    sink = make(values="n", layout=layout)
    with pytest.raises(ConfigurationError, match="belong to job 'likes'"):
        sink.acquire_target(driver("fork"))
    sink.acquire_target(driver())
    write(sink, by(task, driver()), ("a", 2))
    assert value_of(client, layout, "a") == b"2"


def test_a_note_that_is_gone_fails_the_task_and_comes_back_with_the_next_start(
    make: Any, client: Any, task: Task, driver: Driver
) -> None:
    sink = make()
    sink.acquire_target(driver())
    write(sink, by(task, driver(), epoch=9), ("a", 1))
    client.delete("turnback:owner:")
    with pytest.raises(SinkError, match=r"'turnback:owner:' in .* is missing"):
        write(sink, by(task, driver(), epoch=10), ("a", 2))
    sink.acquire_target(driver(attempt=4))
    write(sink, by(task, driver(attempt=4), epoch=1), ("a", 3))
    assert stored(client, "a") == {"n": "3"}


@pytest.mark.parametrize("layout", ["hash", "string"])
@pytest.mark.parametrize("key", ["turnback:version:bob", "turnback:owner:"])
def test_a_key_of_turnback_itself_is_refused(
    make: Any, client: Any, task: Task, driver: Driver, layout: str, key: str
) -> None:
    sink = make(values="n", layout=layout)
    sink.acquire_target(driver())
    before = client.get("turnback:owner:")
    with pytest.raises(SinkError, match=f"has the key '{key}'.* are reserved for Turnback"):
        write(sink, by(task, driver()), ("a", 1), (key, 2))
    assert client.keys() == [b"turnback:owner:"]
    assert client.get("turnback:owner:") == before
    sink.acquire_target(driver(attempt=4))
    write(make(values="n", layout=layout, prefix="p:"), task(), (key, 2))
    assert value_of(client, layout, f"p:{key}") == b"2"


def test_a_password_in_the_query_logs_in_and_is_not_told(
    redis: RedisServer, client: Any, task: Task, driver: Driver
) -> None:
    sink = RedisSink(f"{redis.url}?password={PASSWORD}&username=default", key="post")
    sink.acquire_target(driver())
    write(sink, by(task, driver()), ("a", 1))
    assert stored(client, "a") == {"n": "1"}
    wrong = RedisSink(f"{redis.url}?password=not-the-password", key="post")
    with pytest.raises(ConfigurationError, match="password_from") as refused:
        wrong.check_target(driver())
    assert "not-the-password" not in str(refused.value)


def test_what_was_acknowledged_survives_a_crash_of_the_server(
    make: Any, redis: RedisServer, task: Task
) -> None:
    sink = make()
    write(sink, task(), ("a", 1))
    writer = sink.writer(task(epoch=8))
    writer.write(Batch(task().type, [("a", 2)]))
    redis.crash()
    writer.write(Batch(task().type, [("b", 2)]))
    with pytest.raises(SinkError, match="Redis at redis"):
        writer.prepare()
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
        writer.write(Batch(task().type, [("b", 2)]))
        proxy.lose_replies(5)
        with pytest.raises(SinkError):
            writer.prepare()
    write(make(), task(task_attempt_id=41), ("a", 1), ("b", 2))
    assert stored(client, "a") == {"n": "1"}
    assert stored(client, "b") == {"n": "2"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"key": "likes"}, "key and values contain 'likes', but the stream has 'post', 'n'"),
        ({"values": "likes"}, "key and values contain 'likes'"),
        ({"key": ["post", "n"]}, "no column besides the key post, n"),
    ],
)
def test_columns_that_are_not_there(
    make: Any, client: Any, driver: Driver, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make(**arguments).acquire_target(driver())
    assert client.keys() == []


def test_the_field_of_the_version_is_no_column(make: Any, client: Any, driver: Driver) -> None:
    kind = Types.ROW_NAMED(["post", "turnback_version"], [Types.STRING(), Types.LONG()])
    with pytest.raises(ConfigurationError, match="'turnback_version' of each hash is reserved"):
        make().acquire_target(driver(type=kind))
    assert client.keys() == []
    make(layout="string").acquire_target(driver(type=kind))


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
        RedisSink(url, key="post").check_target(driver())
    assert "not-the-password" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_server_that_is_not_there(make: Any, driver: Driver) -> None:
    with pytest.raises(SinkError, match=r"redis://127\.0\.0\.1:1/0"):
        make(url="redis://127.0.0.1:1/0").check_target(driver())


def test_what_sinks_promise(make: Any, client: Any) -> None:
    prefixes = map("p{}:".format, itertools.count())

    def make_empty() -> RedisSink:
        sink: RedisSink = make(prefix=next(prefixes))
        return sink

    def read(sink: RedisSink) -> list[tuple[str, int]]:
        keys = [key.decode() for key in client.scan_iter(f"{sink.prefix}*")]
        return [(key.partition(":")[2], int(client.hget(key, "n"))) for key in keys]

    elements = [(f"post {n}", n) for n in range(8)]
    kind = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
    update = (("a", 1), ("a", 2))
    report = check_sink(make_empty, read, type=kind, elements=elements, update=update)
    assert {Promise.NEWER_STAYS, Promise.OWNED} <= set(report.kept)
    assert not report.skipped
