import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnback.errors import CorruptFileError, FormatVersionError
from turnback.storage.envelope import seal, unseal

BODY = b'{"job": "likes", "number": 7}\n\x00\xff'


def test_golden_file() -> None:
    # Written by the first version; every later one has to read it.
    golden = b"turnback manifest 1 3 xxh3:cb9cf2c9ed59b4e868cea996d548c7bb\nabc"
    assert seal("manifest", 1, b"abc") == golden
    assert unseal("manifest", 1, golden, "f") == (1, b"abc")


@given(
    st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True),
    st.integers(1, 10**9 - 1),
    st.binary(max_size=300),
)
def test_round_trip(kind: str, version: int, body: bytes) -> None:
    assert unseal(kind, version, seal(kind, version, body), "f") == (version, body)


def test_cut_at_every_length_it_is_never_valid() -> None:
    data = seal("manifest", 1, BODY)
    for length in range(len(data)):
        with pytest.raises(CorruptFileError, match="chk-7"):
            unseal("manifest", 1, data[:length], "chk-7")


def test_every_flipped_bit_is_corruption_and_nothing_else() -> None:
    data = seal("manifest", 1, BODY)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFileError, match="chk-7"):
            unseal("manifest", 9, bytes(broken), "chk-7")


def test_anything_appended_or_prepended_is_corruption() -> None:
    data = seal("manifest", 1, BODY)
    for broken in (data + b"\n", data + data, b"\n" + data, b"x" * 10_000, b"", b"\n"):
        with pytest.raises(CorruptFileError):
            unseal("manifest", 1, broken, "f")


def test_another_kind_is_named() -> None:
    with pytest.raises(CorruptFileError, match=r"chk-7.*fence.*manifest"):
        unseal("manifest", 1, seal("fence", 1, BODY), "chk-7")


def test_a_newer_version_names_both() -> None:
    data = seal("manifest", 3, BODY)
    with pytest.raises(FormatVersionError, match=r"chk-7.*version 3.*versions 1 to 2"):
        unseal("manifest", 2, data, "chk-7")
    with pytest.raises(FormatVersionError, match=r"version 3.*reads version 1\b"):
        unseal("manifest", 1, data, "chk-7")


@pytest.mark.parametrize(
    ("kind", "version"), [("", 1), ("A", 1), ("a b", 1), ("a\n", 1), ("a", 0), ("a", -1)]
)
def test_unusable_kinds_and_versions_are_refused(kind: str, version: int) -> None:
    with pytest.raises(ValueError, match="cannot seal"):
        seal(kind, version, b"")
