"""Object stores against servers, and through a proxy that loses and delays replies."""

import multiprocessing
import os
import pickle
import signal
import time
import uuid
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier

import pytest

from services.object_stores import OBJECT_STORES, ObjectServer
from services.proxy import Proxy, proxy_to
from storage_contract import ODD, StorageContract
from turnback.errors import AlreadyExistsError, NotFoundError, StorageError
from turnback.storage.base import DeletesMany, Storage, put_if_absent_or_same
from turnback.storage.object_store import AzureStorage
from turnback.storage.open import open_storage

SPAWN = multiprocessing.get_context("spawn")
together: Barrier


@pytest.fixture(scope="module", params=OBJECT_STORES)
def server(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ObjectServer]:
    with OBJECT_STORES[request.param](tmp_path_factory.mktemp("server")) as running:
        running.create_bucket("bucket")
        yield running


@pytest.fixture
def uri(server: ObjectServer) -> str:
    return f"{server.bucket_uri('bucket')}/{uuid.uuid4().hex}/root"


@pytest.fixture
def storage(server: ObjectServer, uri: str) -> Storage:
    return open_storage(uri, server.options)


@pytest.fixture
def proxy(server: ObjectServer) -> Iterator[Proxy]:
    with proxy_to(server.port) as running:
        yield running


class TestObjectStorage(StorageContract):
    def test_a_file_is_no_directory(self, storage: Storage, server: ObjectServer) -> None:  # type: ignore[override]
        if not server.flat:
            super().test_a_file_is_no_directory(storage)
            return
        storage.put("a/b", b"below")
        storage.put_if_absent("a", b"above")
        assert storage.list() == ["a", "a/b"]
        assert storage.list("a") == ["a/b"]
        assert storage.get("a") + storage.get("a/b") == b"abovebelow"

    @pytest.mark.parametrize("path", ODD)
    def test_odd_names_come_back_as_they_were(self, storage: Storage, path: str) -> None:
        if isinstance(storage, AzureStorage) and ("\\" in path or path.endswith(".")):
            for call in (storage.get, storage.delete, lambda path: storage.put(path, b"")):
                with pytest.raises(StorageError, match="a backslash or with a dot at the end"):
                    call(path)
            assert storage.list() == []
            return
        super().test_odd_names_come_back_as_they_were(storage, path)


def through(proxy: Proxy, server: ObjectServer, uri: str, **options: str) -> Storage:
    return open_storage(uri, server.options_at(proxy.port) | server.named(options))


def test_a_prefix_is_a_directory_of_its_own(
    server: ObjectServer, uri: str, storage: Storage
) -> None:
    open_storage(uri + "-other", server.options).put("a", b"other")
    storage.put("a", b"mine")
    assert storage.list() == ["a"]
    bucket = server.bucket_uri("bucket")
    whole = open_storage(bucket, server.options)
    inside = uri.removeprefix(f"{bucket}/")
    assert whole.get(f"{inside}/a") == b"mine"
    assert {f"{inside}/a", f"{inside}-other/a"} <= set(whole.list())


@pytest.mark.parametrize("server", ["s3", "gcs"], indirect=True)  # Azure's pages have 5000
def test_more_files_than_one_page_of_a_listing(storage: Storage) -> None:
    paths = [f"state/{number:04}" for number in range(1100)]
    for path in paths:
        storage.put(path, b"")
    assert storage.list("state") == paths


def test_many_files_are_deleted_at_once(storage: Storage) -> None:
    paths = [f"state/1/{number:04d}" for number in range(60)]
    for path in paths:
        storage.put(path, b"x")
    assert isinstance(storage, DeletesMany)
    storage.delete_many([*paths[:50], "state/1/missing"])
    assert storage.list() == paths[50:]
    with pytest.raises(StorageError, match="not a path inside the storage"):
        storage.delete_many([paths[50], "../escaped"])
    assert storage.list() == paths[50:]


def test_settings_from_the_environment(
    server: ObjectServer, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    storage = open_storage(uri)
    storage.put("a", b"1")
    assert storage.get("a") == b"1"


def test_it_is_the_same_storage_after_pickling(storage: Storage) -> None:
    storage.put("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).get("a") == b"1"


# Racing writers


def meet(barrier: Barrier) -> None:
    global together
    together = barrier


def claim_slots(storage: Storage, writer: int, slots: int) -> list[int]:
    won = []
    together.wait(60)
    for slot in range(slots):
        try:
            storage.put_if_absent(f"log/{slot}", b"%d" % writer)
            won.append(slot)
        except AlreadyExistsError:
            pass
    return won


def test_of_racing_processes_exactly_one_wins_each_slot(storage: Storage) -> None:
    slots = 40
    with SPAWN.Pool(3, meet, (SPAWN.Barrier(3),)) as pool:
        jobs = [pool.apply_async(claim_slots, (storage, writer, slots)) for writer in range(3)]
        won = [job.get(120) for job in jobs]
    assert sorted(slot for mine in won for slot in mine) == list(range(slots))
    for writer, mine in enumerate(won):
        assert all(storage.get(f"log/{slot}") == b"%d" % writer for slot in mine)


def test_a_forked_process_is_told_so_instead_of_hanging(storage: Storage) -> None:
    storage.put("a", b"1")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            storage.get("a")
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert b"'spawn'" in answer.read()
    os.waitpid(child, 0)
    assert storage.get("a") == b"1"


# Lost and late replies


@pytest.mark.parametrize("retries", ["0", "3"])
def test_a_claim_whose_reply_is_lost_is_ours(
    server: ObjectServer, proxy: Proxy, uri: str, storage: Storage, retries: str
) -> None:
    unreliable = through(proxy, server, uri, max_retries=retries)
    unreliable.put("warm", b"")
    for number in range(5):
        proxy.lose_replies(1)
        put_if_absent_or_same(unreliable, f"slot/{number}", b"ours")
        assert storage.get(f"slot/{number}") == b"ours"
    assert proxy.lost == 5


def test_without_a_claim_a_lost_reply_is_an_error(
    server: ObjectServer, proxy: Proxy, uri: str, storage: Storage
) -> None:
    unreliable = through(proxy, server, uri, max_retries="0")
    unreliable.put("warm", b"")
    proxy.lose_replies(1)
    with pytest.raises(StorageError, match=f"cannot create slot in {uri}"):
        unreliable.put_if_absent("slot", b"ours")
    assert storage.get("slot") == b"ours"


def test_a_lost_reply_does_not_hide_a_lost_race(
    server: ObjectServer, proxy: Proxy, uri: str, storage: Storage
) -> None:
    unreliable = through(proxy, server, uri)
    unreliable.put("warm", b"")
    storage.put("slot", b"theirs")
    proxy.lose_replies(1)
    with pytest.raises(AlreadyExistsError):
        put_if_absent_or_same(unreliable, "slot", b"ours")
    assert storage.get("slot") == b"theirs"


@pytest.mark.parametrize(
    "server",
    ["s3", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("gcs", "azure"))],
    indirect=True,
)
def test_a_server_that_does_not_answer_is_an_error_in_bounded_time(
    server: ObjectServer, proxy: Proxy, uri: str
) -> None:
    slow = through(proxy, server, uri, timeout="1 s", max_retries="1", retry_timeout="2 s")
    slow.put("a", b"1")
    proxy.delay = 60
    begin = time.monotonic()
    for call in (lambda: slow.get("a"), lambda: slow.put("a", b"2"), lambda: slow.list()):
        with pytest.raises(StorageError) as failure:
            call()
        assert not isinstance(failure.value, NotFoundError)
    assert time.monotonic() - begin < 20


# A failure is never taken for "nothing there"


def expect_failures(storage: Storage, message: str) -> None:
    for call in (
        lambda: storage.list(),
        lambda: storage.list("job"),
        lambda: storage.get("job/1"),
        lambda: storage.put("job/1", b""),
        lambda: storage.put_if_absent("job/1", b""),
        lambda: storage.delete("job/1"),
    ):
        with pytest.raises(StorageError, match=message) as failure:
            call()
        assert not isinstance(failure.value, NotFoundError | AlreadyExistsError)
        assert "Debug source" not in str(failure.value)


def test_a_missing_bucket(server: ObjectServer) -> None:
    storage = open_storage(f"{server.bucket_uri('nowhere')}/x", server.options)
    expect_failures(storage, server.missing_bucket)


@pytest.mark.parametrize("server", ["s3"], indirect=True)  # only its keys have names
def test_an_unknown_key(server: ObjectServer) -> None:
    wrong = server.options | {"access_key_id": "wrong"}
    expect_failures(open_storage("s3://bucket/x", wrong), "UserNotFound|InvalidAccessKeyId")


def test_a_wrong_secret(server: ObjectServer) -> None:
    wrong = server.options | server.wrong_secrets()
    storage = open_storage(f"{server.bucket_uri('bucket')}/x", wrong)
    expect_failures(storage, server.refused)
    with pytest.raises(StorageError) as failure:
        storage.get("a")
    for options in (server.options, server.wrong_secrets()):
        secrets = [text for name, text in options.items() if "secret" in name or "key" in name]
        assert not any(secret in str(failure.value) for secret in secrets if len(secret) > 20)


@pytest.mark.parametrize("server", ["azure"], indirect=True)  # only it takes them in URLs
def test_a_signature_is_not_part_of_an_error(server: ObjectServer) -> None:
    options = {k: v for k, v in server.options.items() if k != "azure_account_key"}
    options["azure_sas_token"] = "sv=2021-08-06&ss=b&srt=sco&sp=rwdl&sig=hidden-signature"
    storage = open_storage(f"{server.bucket_uri('bucket')}/x", options)
    expect_failures(storage, server.refused)
    for call in (storage.list, lambda: storage.get("a")):
        with pytest.raises(StorageError) as failure:
            call()
        assert "hidden-signature" not in str(failure.value)


def test_nobody_listens(server: ObjectServer) -> None:
    uri = f"{server.bucket_uri('bucket')}/x"
    limits = {"max_retries": "1", "retry_timeout": "1 s"}
    with proxy_to(server.port) as proxy:
        storage = through(proxy, server, uri, **limits)
        storage.put("job/1", b"")
    time.sleep(0.1)
    options = server.options_at(9) | server.named(limits)
    expect_failures(open_storage(uri, options), "cannot")
