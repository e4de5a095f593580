import pytest

from turnback.errors import CorruptFileError
from turnback.storage.envelope import check, digest


def test_the_digest_is_the_documented_one() -> None:
    # A golden value: digests are recorded in manifests, so the function must never change.
    assert digest(b"") == "xxh3:99aa06d3014798d86001c324468d497f"


def test_intact_bytes_pass() -> None:
    check(b"abc", 3, digest(b"abc"), "f")


def test_a_wrong_length_names_the_file_and_both_lengths() -> None:
    with pytest.raises(CorruptFileError, match=r"state/1/a\.arrow.* 2 bytes found, 3 recorded"):
        check(b"ab", 3, digest(b"abc"), "state/1/a.arrow")


def test_wrong_bytes_name_the_file_and_both_digests() -> None:
    found, recorded = digest(b"abd"), digest(b"abc")
    with pytest.raises(CorruptFileError, match=rf"a\.arrow.* {found} found, {recorded} recorded"):
        check(b"abd", 3, recorded, "a.arrow")


def test_every_flipped_bit_is_noticed() -> None:
    data = bytes(range(200))
    recorded = digest(data)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFileError):
            check(bytes(broken), len(data), recorded, "f")
