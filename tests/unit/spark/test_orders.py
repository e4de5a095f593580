"""Orders on their way to the tasks: in a property of the Spark job, or through a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from turnback.checkpoint.retention import attempt_of
from turnback.errors import StorageError
from turnback.spark import worker as orders
from turnback.spark.worker import read_command, send_commands
from turnback.state.files import StateFile, StorageRef
from turnback.storage.local import LocalStorage
from turnback.worker.message import EpochCommand

FILES = tuple(
    StateFile(f"state/1/{n}.arrow", 10, "d", 3, n, n, 0, 127, ("op",), lineage=(("1-n", n),))
    for n in range(3)
)


class FakeContext:
    """Passes properties on, as a Spark context does to the contexts of its tasks."""

    def __init__(self) -> None:
        self.properties: dict[str, str | None] = {}
        self.partition = 0

    def partitionId(self) -> int:
        return self.partition

    def setLocalProperty(self, key: str, value: str | None) -> None:
        self.properties[key] = value

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


def order(storage: StorageRef, epoch: int) -> EpochCommand:
    return EpochCommand(
        "job", "id", 1, epoch, "rocksdb", None, storage, {0: FILES, 2: FILES[:1]}, "1-n"
    )


@pytest.fixture
def context() -> FakeContext:
    return FakeContext()


@pytest.mark.parametrize("large", [False, True], ids=["in the property", "in a file"])
def test_tasks_get_the_order_of_their_level(
    context: FakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(orders, "LARGE", 10)
    storage = StorageRef(str(tmp_path))
    sent = [order(storage, 7), order(storage, 8)]
    with send_commands(context, sent):  # type: ignore[arg-type]
        assert len(list(tmp_path.rglob("order-*"))) == (2 if large else 0)
        for level in (0, 1):
            assert read_command(context, level) == sent[level]  # type: ignore[arg-type]
    assert set(context.properties.values()) == {None}
    assert list(tmp_path.rglob("order-*")) == []


def test_workers_that_cannot_see_the_storage_get_even_large_orders_directly(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "LARGE", 10)
    sent = order(StorageRef("memory://here", inline=True), 7)
    with send_commands(context, [sent]):  # type: ignore[arg-type]
        assert read_command(context, 0) == sent  # type: ignore[arg-type]


def test_nothing_is_left_behind_by_an_epoch_that_fails(
    context: FakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "LARGE", 10)
    with (
        pytest.raises(RuntimeError, match="an epoch"),
        send_commands(context, [order(StorageRef(str(tmp_path)), 7)]),  # type: ignore[arg-type]
    ):
        raise RuntimeError("an epoch that fails")
    assert context.properties == {"turnback.order.0": None}
    assert list(tmp_path.rglob("order-*")) == []


@pytest.mark.parametrize("partitions", [1, 2, 7, 100, 1_000])
def test_a_task_reads_only_the_part_of_a_large_command_that_is_about_it(
    context: FakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(orders, "LARGE", 10)
    monkeypatch.setattr(orders, "_PART", 10_000)
    files = dict.fromkeys(range(0, partitions, 3), FILES)  # others have no state yet
    sent = replace(order(StorageRef(str(tmp_path)), 7), files=files)
    with send_commands(context, [sent]):  # type: ignore[arg-type]
        sizes = [path.stat().st_size for path in tmp_path.rglob("order-*")]
        assert (len(sizes) > 1) is (partitions >= 100)
        assert max(sizes) < 12_000
        for context.partition in range(partitions + 5):
            read = read_command(context, 0)  # type: ignore[arg-type]
            assert read.files.get(context.partition, ()) == files.get(context.partition, ())
            assert replace(read, files={}) == replace(sent, files={})
    assert list(tmp_path.rglob("order-*")) == []


def test_a_command_for_many_tasks_goes_through_files_sooner(
    context: FakeContext, tmp_path: Path
) -> None:
    for partitions, by_file in ((100, False), (1_000, True)):
        files = dict.fromkeys(range(partitions), FILES)
        sent = replace(order(StorageRef(str(tmp_path)), 7), files=files)
        with send_commands(context, [sent]):  # type: ignore[arg-type]
            assert bool(list(tmp_path.rglob("order-*"))) is by_file


def test_files_that_cannot_be_removed_do_not_fail_the_epoch(
    context: FakeContext,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All its tasks have run; the next start removes them."""

    def stuck(storage: LocalStorage, path: str) -> None:
        raise StorageError(f"cannot delete {path}: slow down")

    monkeypatch.setattr(orders, "LARGE", 10)
    monkeypatch.setattr(LocalStorage, "delete", stuck)
    with send_commands(context, [order(StorageRef(str(tmp_path)), 7)]):  # type: ignore[arg-type]
        pass
    (left,) = tmp_path.rglob("order-*")
    assert attempt_of(str(left.relative_to(tmp_path))) == 1
    assert f"{left.name} is kept until the next start" in caplog.text


def test_the_files_of_a_command_are_removed_at_once_where_the_storage_can(
    context: FakeContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def delete_many(storage: LocalStorage, paths: Sequence[str]) -> None:
        calls.append(len(paths))
        for path in paths:
            storage.delete(path)

    monkeypatch.setattr(orders, "LARGE", 10)
    monkeypatch.setattr(orders, "_PART", 10_000)
    monkeypatch.setattr(LocalStorage, "delete_many", delete_many, raising=False)
    files = dict.fromkeys(range(100), FILES)
    sent = replace(order(StorageRef(str(tmp_path)), 7), files=files)
    with send_commands(context, [sent]):  # type: ignore[arg-type]
        parts = len(list(tmp_path.rglob("order-*")))
    assert calls == [parts]
    assert list(tmp_path.rglob("order-*")) == []
