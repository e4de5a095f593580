"""HDFS as a storage, on a real NameNode and DataNode."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import Client

from services.hdfs import HdfsCluster
from services.process import free_port
from services.proxy import Proxy, proxy_to
from storage_contract import StorageContract
from turnback.errors import AlreadyExistsError, ConfigurationError, NotFoundError, StorageError
from turnback.storage.base import Storage
from turnback.storage.hdfs import HdfsStorage
from turnback.storage.open import open_storage

SPAWN = multiprocessing.get_context("spawn")
together: Barrier


@pytest.fixture
def uri(hdfs: HdfsCluster) -> str:
    return hdfs.root()


@pytest.fixture
def storage(uri: str) -> Storage:
    return open_storage(uri)


class TestHdfsStorage(StorageContract):
    pass


def test_it_is_the_same_storage_after_pickling(storage: Storage) -> None:
    storage.put("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).get("a") == b"1"


def test_a_directory_beside_it_is_another_storage(uri: str, storage: Storage) -> None:
    open_storage(f"{uri}-other").put("a", b"other")
    storage.put("a", b"mine")
    assert storage.list() == ["a"]
    assert open_storage(uri.removesuffix("/root")).list() == ["root-other/a", "root/a"]


def test_only_their_user_can_read_files(
    hdfs: HdfsCluster, storage: Storage, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("a/b", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    other = open_storage(uri, {"hdfs_timeout": "110 s"})  # another connection, as another user
    begin = time.monotonic()
    for call in (
        lambda: other.get("a/b"),
        lambda: other.put("a/c", b""),
        lambda: other.delete("a/b"),
    ):
        with pytest.raises(StorageError, match="Permission denied: user=mallory") as failure:
            call()
        assert "\n" not in str(failure.value)
        assert "org.apache" not in str(failure.value)
    assert time.monotonic() - begin < 20
    assert storage.get("a/b") == b"1"


def test_a_name_with_a_colon_is_refused(storage: Storage) -> None:
    with pytest.raises(StorageError, match="no ':' in names"):
        storage.put("a:b", b"")


def test_readers_see_the_old_or_the_new_bytes(storage: Storage) -> None:
    versions = [bytes([number]) * 200_000 for number in range(12)]
    storage.put("status", versions[0])
    ended = threading.Event()

    def replace() -> None:
        for data in versions:
            storage.put("status", data)
        ended.set()

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set()
    while not ended.is_set():
        data = storage.get("status")
        assert data in versions
        seen.add(data[0])
    writer.join()
    assert len(seen) > 1
    assert storage.list() == ["status"]


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
    slots = 50
    with SPAWN.Pool(2, meet, (SPAWN.Barrier(2),)) as pool:
        jobs = [pool.apply_async(claim_slots, (storage, writer, slots)) for writer in range(2)]
        won = [job.get(240) for job in jobs]
    assert sorted(slot for mine in won for slot in mine) == list(range(slots))
    for writer, mine in enumerate(won):
        assert all(storage.get(f"log/{slot}") == b"%d" % writer for slot in mine)
    assert len(storage.list()) == slots


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


# Lost replies


@pytest.fixture
def proxy(hdfs: HdfsCluster) -> Iterator[Proxy]:
    with proxy_to(hdfs.port) as running:
        yield running


def through(proxy: Proxy, uri: str) -> Storage:
    path = uri.split("/", 3)[3]
    # Some lost replies make the library wait for ever; what gives up and connects anew is ours.
    limits = {"hdfs_timeout": "15 s"}
    storage = open_storage(f"hdfs://127.0.0.1:{proxy.port}/{path}", limits)
    storage.put("warm", b"")
    return storage


@pytest.mark.exhaustive
@pytest.mark.parametrize("call", ["put", "put_if_absent"])
def test_a_write_whose_replies_are_lost_is_ours(
    proxy: Proxy, uri: str, storage: Storage, call: str
) -> None:
    unreliable = through(proxy, uri)
    for number in range(8):
        # Each time another reply: of creating, adding a block, closing or renaming the file.
        loser = threading.Timer(0.003 * number, proxy.lose_replies, (1,))
        loser.start()
        getattr(unreliable, call)(f"slot/{number}", b"ours %d" % number)
        loser.join()
        proxy.lose_replies(0)
        assert storage.get(f"slot/{number}") == b"ours %d" % number
    assert proxy.lost
    assert len(storage.list("slot")) == 8


def test_the_lost_reply_of_a_rename_is_found_out(
    proxy: Proxy, uri: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreliable = through(proxy, uri)
    rename = Client.rename
    tried = set()

    def losing(client: Client, source: str, *arguments: Any) -> None:
        if source not in tried:
            tried.add(source)
            proxy.lose_replies(1)
        rename(client, source, *arguments)

    monkeypatch.setattr(Client, "rename", losing)
    unreliable.put_if_absent("slot", b"ours")
    unreliable.put("status", b"first")
    unreliable.put("status", b"second")
    assert proxy.lost >= 3
    with pytest.raises(AlreadyExistsError):
        unreliable.put_if_absent("slot", b"theirs")
    assert storage.get("slot") == b"ours"
    assert storage.get("status") == b"second"
    assert storage.list() == ["slot", "status", "warm"]


# A failure is never taken for "nothing there", and comes in time


def expect_failures(storage: Storage, message: str) -> None:
    for call in (
        lambda: storage.list(),
        lambda: storage.get("job/1"),
        lambda: storage.put("job/1", b""),
        lambda: storage.put_if_absent("job/1", b""),
        lambda: storage.delete("job/1"),
    ):
        with pytest.raises(StorageError, match=message) as failure:
            call()
        assert not isinstance(failure.value, NotFoundError | AlreadyExistsError)
        assert "\n" not in str(failure.value)


def test_nobody_listens() -> None:
    expect_failures(open_storage(f"hdfs://127.0.0.1:{free_port()}/x"), "Connection refused")


def test_an_unknown_host() -> None:
    expect_failures(open_storage("hdfs://no-such-host.invalid:8020/x"), "lookup|resolve|not known")


def test_a_nameservice_that_no_configuration_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with pytest.raises(ConfigurationError, match="no port, and is no nameservice"):
        open_storage("hdfs://warehouse/x").list()


def test_a_nameservice_of_the_configuration(hdfs: HdfsCluster, tmp_path: Path) -> None:
    settings = {
        "dfs.nameservices": "warehouse",
        "dfs.ha.namenodes.warehouse": "away,here",
        "dfs.namenode.rpc-address.warehouse.away": f"127.0.0.1:{free_port()}",
        "dfs.namenode.rpc-address.warehouse.here": f"127.0.0.1:{hdfs.port}",
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{properties}</configuration>")
    path = hdfs.root().removeprefix(hdfs.url)
    storage = open_storage(f"hdfs://warehouse{path}", {"hdfs_config_dir": str(tmp_path)})
    storage.put_if_absent("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).get("a") == b"1"
    assert open_storage(f"{hdfs.url}{path}").list() == ["a"]


def test_a_namenode_that_does_not_answer_is_an_error_in_bounded_time(
    hdfs: HdfsCluster, uri: str
) -> None:
    limits = {"hdfs_timeout": "1 s", "hdfs_retry_timeout": "2 s"}
    storage = open_storage(uri, limits)
    open_storage(uri).put("a", b"1")
    storage.list()
    begin = time.monotonic()
    with hdfs.paused():
        for call in (
            lambda: storage.get("a"),
            lambda: storage.put("a", b"2"),
            lambda: storage.list(),
        ):
            with pytest.raises(StorageError, match="no answer within 1 s") as failure:
                call()
            assert not isinstance(failure.value, NotFoundError)
    assert time.monotonic() - begin < 60


# Crashes


def test_a_crash_of_the_whole_cluster_is_waited_out(hdfs: HdfsCluster, storage: Storage) -> None:
    storage.put("kept", b"1" * 300_000)
    done = []

    def write() -> None:
        for number in range(6):
            storage.put_if_absent(f"log/{number}", b"%d" % number * 50_000)
            done.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    while not done:
        time.sleep(0.01)
    hdfs.crash()
    hdfs.start()
    writer.join()
    assert done == list(range(6))
    assert storage.list("log") == [f"log/{number}" for number in done]
    for number in done:
        assert storage.get(f"log/{number}") == b"%d" % number * 50_000
    assert storage.get("kept") == b"1" * 300_000


WRITER = """
import sys
from turnback.storage.open import open_storage
storage = open_storage(sys.argv[1])
print("go", flush=True)
for number in range(10_000):
    storage.put_if_absent(f"log/{number}", b"x" * 100_000)
"""


def test_what_a_killed_writer_has_left_is_removed_when_it_is_old(
    hdfs: HdfsCluster, storage: HdfsStorage, uri: str
) -> None:
    client = Client(hdfs.url)
    root = uri.removeprefix(hdfs.url)
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, uri], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "go\n"
        while not temporary(client, root):
            time.sleep(0.005)
        writer.kill()
        writer.wait()
        left = temporary(client, root)
        if left:
            break
    assert left, "no writer was killed between two steps"
    complete = storage.list()
    assert all(len(storage.get(path)) == 100_000 for path in complete)
    assert storage.leftovers(remove=True) == {}  # one may still be writing
    hours_ago = int(time.time() - 2 * 3600) * 1000
    for path in left:
        client.set_times(path, hours_ago, hours_ago)
    assert set(storage.leftovers()) == {path.removeprefix(f"{root}/") for path in left}
    assert len(storage.leftovers(remove=True)) == len(left)
    assert temporary(client, root) == []
    assert storage.list() == complete


def temporary(client: Client, root: str) -> list[str]:
    try:
        found = [status.path for status in client.list_status(root, True)]
    except FileNotFoundError:
        return []
    return [path for path in found if "/.turnback-tmp-" in path]
