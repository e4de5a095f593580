import msgspec
import pytest

from coordinator_fakes import HookedStorage, memory, take_fence
from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.checkpoint.manifest import Fence, Manifest, SourcePosition, decode, encode
from turnback.errors import (
    AlreadyExistsError,
    CheckpointError,
    CheckpointNotFoundError,
    CorruptFileError,
    FencedError,
    FormatVersionError,
    StorageError,
)
from turnback.state.files import StateFile
from turnback.state.schema import KeySchema, StateSchema
from turnback.storage.envelope import seal, unseal


def manifest(number: int = 0, attempt: int = 1, created_ms: int = 0, **fields) -> Manifest:
    values = {
        "job": "job",
        "job_id": "id",
        "number": number,
        "attempt": attempt,
        "epoch": 5,
        "created_ms": created_ms,
        "trigger": "periodic",
        "parent": None,
        "max_parallelism": 128,
        "sources": {"s": SourcePosition('{"a":1}')},
        "state": (),
        "schemas": (),
        "operators": (),
        "transactions": {"sink": (b"\x00\xff",)},
        "watermarks": {"w": -(2**63)},
    }
    return Manifest(**values | fields)


@pytest.fixture
def storage():
    return HookedStorage(memory())


@pytest.fixture
def log(storage):
    log = CheckpointLog(storage)
    take_fence(log)
    return log


def test_a_manifest_survives_the_trip() -> None:
    file = StateFile("state/1/a", 3, "xxh3:0", 1, 1, 2, 0, 127, ("op",), inline=b"\x01\x02")
    schema = StateSchema(
        uid="op", name="s", kind="value", key=KeySchema((), True), value={"t": "long"}
    )
    one = manifest(7, state=(file,), schemas=(schema,), watermarks={"ü": 1})
    assert decode(encode(one), "x") == one


def test_a_manifest_of_an_older_version_is_read_without_what_it_no_longer_holds() -> None:
    one = manifest(7)
    _, body = unseal("checkpoint", 1, encode(one), "x")
    older = msgspec.json.encode(msgspec.json.decode(body) | {"config": {"a": [1, "b"]}})
    assert decode(seal("checkpoint", 1, older), "x") == one


def test_a_manifest_cut_at_any_length_is_never_valid() -> None:
    whole = encode(manifest(7))
    for length in range(len(whole)):
        with pytest.raises(CorruptFileError, match="chk-7"):
            decode(whole[:length], "chk-7")


def test_a_newer_format_is_refused_naming_both_versions() -> None:
    _, body = unseal("checkpoint", 1, encode(manifest(7)), "x")
    with pytest.raises(FormatVersionError, match=r"2.*1"):
        decode(seal("checkpoint", 2, body), "x")


def test_intact_but_senseless_content_is_corrupt() -> None:
    with pytest.raises(CorruptFileError, match="chk-9"):
        decode(seal("checkpoint", 1, b'{"slot": "fence"}'), "chk-9")


def test_slots_are_taken_in_order(log, storage) -> None:
    assert [m.number for m in log.append(manifest())] == [2]
    assert [m.number for m in log.append(manifest())] == [3]
    assert storage.list("checkpoints") == [slot_path(n) for n in (1, 2, 3)]
    reader = CheckpointLog(storage)
    assert [type(reader.get(n)) for n in reader.numbers()] == [Fence, Manifest, Manifest]
    assert reader.latest().number == 3


def test_numbers_are_ordered_as_numbers(log) -> None:
    for _ in range(12):
        log.append(manifest())
    assert log.latest().number == 13
    assert log.numbers() == list(range(1, 14))


def test_an_empty_directory_has_no_checkpoint(storage) -> None:
    assert CheckpointLog(storage).latest() is None


def test_a_listing_error_is_not_an_empty_log(storage) -> None:
    storage.fail("list", "")
    with pytest.raises(StorageError):
        CheckpointLog(storage).latest()
    with pytest.raises(StorageError):
        take_fence(CheckpointLog(storage))


def test_each_fence_starts_a_new_attempt(storage) -> None:
    fences = [take_fence(CheckpointLog(storage), nonce=str(n)) for n in range(3)]
    assert [(f.number, f.attempt) for f in fences] == [(1, 1), (2, 2), (3, 3)]


def test_a_zombie_is_fenced(storage, log) -> None:
    log.append(manifest())
    log.check_fence()
    take_fence(CheckpointLog(storage), nonce="other")
    with pytest.raises(FencedError, match="attempt 2 has taken over"):
        log.append(manifest())
    with pytest.raises(FencedError):
        log.check_fence()
    assert log.latest().number == 2


def test_a_zombie_stays_fenced_after_clean_up(storage, log) -> None:
    log.append(manifest())
    newer = CheckpointLog(storage)
    take_fence(newer, nonce="other")
    for _ in range(3):
        newer.append(manifest(attempt=2))
    for number in (2, 4, 5):
        newer.remove(number)
    with pytest.raises(FencedError):
        log.append(manifest())


def test_a_fence_cannot_be_removed(log) -> None:
    with pytest.raises(CheckpointError, match="fence"):
        log.remove(1)
    log.remove(99)


def test_of_two_drivers_started_together_one_wins(storage) -> None:
    first, second = CheckpointLog(storage), CheckpointLog(storage)

    def other_is_faster(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            storage.heal()
            take_fence(second, nonce="second", pid=77)

    storage.before = other_is_faster
    with pytest.raises(FencedError, match="pid 77 on host"):
        take_fence(first, nonce="first")
    second.append(manifest())
    with pytest.raises(CheckpointError, match="reading only"):
        first.append(manifest())


def test_a_predecessors_last_manifest_may_still_land_before_the_fence(storage, log) -> None:
    log.append(manifest())

    def predecessor_is_faster(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            storage.heal()
            log.append(manifest(epoch=6))

    storage.before = predecessor_is_faster
    newer = CheckpointLog(storage)
    fence = take_fence(newer, nonce="new")
    assert (fence.number, fence.attempt, fence.manifests) == (4, 2, (2, 3))
    assert newer.latest().epoch == 6


def test_a_lost_reply_is_recognised_as_our_own(storage, log) -> None:
    def lose(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            storage.heal()
            raise StorageError("connection reset")

    storage.after = lose
    assert [m.number for m in log.append(manifest())] == [2]
    storage.after = lose
    assert take_fence(CheckpointLog(storage), nonce="x").number == 3


def test_a_write_of_unknown_outcome_that_landed_is_found_and_kept(storage, log) -> None:
    def lose(operation: str, path: str) -> None:
        if operation in ("put_if_absent", "get") and path.endswith("chk-2.json"):
            raise StorageError("connection reset")

    storage.after = lose
    with pytest.raises(StorageError):
        log.append(manifest(epoch=5))
    storage.heal()
    durable = log.append(manifest(epoch=6))
    assert [(m.number, m.epoch) for m in durable] == [(2, 5), (3, 6)]
    assert [(m.number, m.epoch) for m in log.scan().manifests] == [(2, 5), (3, 6)]


def test_a_corrupt_slot_never_falls_back_to_an_older_one(storage, log) -> None:
    log.append(manifest())
    log.append(manifest())
    whole = storage.get(slot_path(3))
    for broken in (b"", whole[:-1], whole.replace(b"periodic", b"periodid")):
        storage.put(slot_path(3), broken)
        for look in (log.latest, lambda: log.find(10), lambda: log.get(3)):
            with pytest.raises(CorruptFileError, match="chk-3"):
                look()
        with pytest.raises(CorruptFileError, match="chk-3"):
            take_fence(CheckpointLog(storage), nonce="x")


def test_a_corrupt_fence_at_the_top_is_no_excuse_either(storage, log) -> None:
    log.append(manifest())
    take_fence(CheckpointLog(storage), nonce="x")
    storage.put(slot_path(3), b"rubbish")
    with pytest.raises(CorruptFileError, match="chk-3"):
        CheckpointLog(storage).latest()


def test_a_slot_that_was_copied_is_refused(storage, log) -> None:
    log.append(manifest())
    storage.put(slot_path(3), storage.get(slot_path(2)))
    with pytest.raises(CorruptFileError, match=r"chk-3.*copied or renamed"):
        log.latest()


def test_scan_tells_readable_from_unreadable(storage, log) -> None:
    for _ in range(3):
        log.append(manifest())
    storage.put(slot_path(3), b"rubbish")
    scan = log.scan()
    assert [m.number for m in scan.manifests] == [2, 4]
    assert list(scan.unreadable) == [3]
    take_fence(CheckpointLog(storage), nonce="x")
    assert list(CheckpointLog(storage).scan().unreadable) == [3]


def test_looking_at_the_log_does_not_read_every_old_fence(storage) -> None:
    log = CheckpointLog(storage)
    take_fence(log)
    log.append(manifest())
    for n in range(50):
        take_fence(CheckpointLog(storage), nonce=str(n))
    storage.operations.clear()
    assert CheckpointLog(storage).latest().number == 2
    assert len([op for op, _ in storage.operations if op == "get"]) <= 3


def test_find_goes_by_time_and_order_by_number(log) -> None:
    for created_ms in (100, 200, 150):  # the clock was set back
        log.append(manifest(created_ms=created_ms))
    assert log.find(before_ms=99) is None
    assert log.find(before_ms=100).number == 2
    assert log.find(before_ms=160).number == 4
    assert log.find(before_ms=1000).number == 4
    assert log.latest().number == 4


def test_get_of_nothing_is_not_found(log) -> None:
    with pytest.raises(CheckpointNotFoundError, match="chk-42"):
        log.get(42)


def test_committed_only_goes_up(log, storage) -> None:
    assert log.committed() == 0
    log.record_commit(5)
    log.record_commit(3)
    assert CheckpointLog(storage).committed() == 5
    storage.put("checkpoints/committed.json", b"x")
    with pytest.raises(CorruptFileError, match="committed"):
        log.committed()


def test_after_the_end_nothing_can_be_appended_and_no_number_comes_back(storage, log) -> None:
    log.append(manifest())
    assert log.end() == ()
    log.remove(2)
    with pytest.raises(CheckpointError):
        log.append(manifest())
    with pytest.raises(AlreadyExistsError):  # a write that was still on its way
        storage.put_if_absent(slot_path(3), encode(manifest(3)))
    assert take_fence(CheckpointLog(storage), nonce="x").number == 4


def test_slots_are_frozen() -> None:
    with pytest.raises(AttributeError):
        manifest(1).number = 2  # type: ignore[misc]
    assert msgspec.structs.replace(manifest(1), number=2).number == 2


@pytest.mark.parametrize("attempt", [1, 2])
def test_only_a_manifest_of_this_very_attempt_is_our_own(storage, log, attempt: int) -> None:
    other = manifest(2, attempt=2) if attempt == 2 else take_fence(CheckpointLog(memory()))
    storage.put(slot_path(2), encode(msgspec.structs.replace(other, number=2)))
    with pytest.raises(FencedError):
        log.append(manifest())
    with pytest.raises(FencedError):
        log.check_fence()


def test_which_driver_had_an_attempt_is_known_beside_a_damaged_checkpoint(log, storage):
    log.append(manifest())
    nonce = log.own_fence.nonce
    storage.put(slot_path(2), b"damaged")
    assert log.nonce_of(1) == nonce
    with pytest.raises(CorruptFileError):  # it may be the fence of that attempt
        log.nonce_of(2)
    log.storage.delete(slot_path(2))
    assert log.nonce_of(2) is None


def test_the_newest_epoch_of_an_attempt_that_has_a_checkpoint(log, storage):
    assert log.newest_epoch(1) == 0
    log.append(manifest(epoch=5))
    log.append(manifest(epoch=7))
    assert log.newest_epoch(1) == 7
    second = CheckpointLog(storage)
    take_fence(second)
    assert (log.newest_epoch(1), log.newest_epoch(2)) == (7, 0)
    second.append(manifest(attempt=2, epoch=9))
    assert log.newest_epoch(1) is None  # of the first one all may have been dropped
    assert log.newest_epoch(2) == 9
    storage.put(slot_path(second.numbers()[-1]), b"damaged")
    assert log.newest_epoch(2) is None


def test_of_a_job_whose_checkpoints_were_deleted_at_its_end_nobody_knows_epochs(log):
    log.append(manifest())
    log.end()
    for number in log.numbers():
        if isinstance(log.get(number), Manifest):
            log.remove(number)
    assert log.newest_epoch(1) is None
