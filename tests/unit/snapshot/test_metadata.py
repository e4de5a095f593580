from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from savepoint_support import LOG, METADATA, NATIVE, PART, state_schema

from turnback.checkpoint.manifest import SourcePosition
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import CorruptFileError, FormatVersionError
from turnback.snapshot import metadata as module
from turnback.snapshot.metadata import SavedState, decode, encode


def with_paths(part="state/a/b/c", log="sources/a", native=None):
    changed = replace(
        METADATA,
        states=(SavedState(state_schema(), 7, (replace(PART, path=part),)),),
        sources={"src": SourcePosition(None, (replace(LOG, path=log),))},
    )
    if native is not None:
        file = replace(NATIVE, path=native)
        changed = replace(changed, type=SavepointFormat.NATIVE, states=(), native=(file,))
    return changed


def forged(metadata, monkeypatch):
    """The bytes a stranger could write, with a valid checksum."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "_problem", lambda metadata: None)
        return encode(metadata)


def test_round_trip():
    assert decode(encode(METADATA), "f") == METADATA
    native = with_paths(native="files/a")
    assert decode(encode(native), "f") == native


def test_a_file_of_format_1_is_read_for_ever():
    """Written by the first release; never to be written anew."""
    data = (Path(__file__).parent / "golden" / "savepoint-1.json").read_bytes()
    assert decode(data, "f") == METADATA


def test_it_is_json_for_people():
    data = encode(METADATA)
    document = json.loads(data)
    assert list(document) == ["kind", "format", "checksum", "savepoint"]
    assert document["savepoint"]["label"] == "before the migration"
    assert data.startswith(
        b'{\n  "kind": "turnback-savepoint",\n  "format": 1,\n  "checksum": "xxh3:'
    )
    assert b'\n    "job": "likes",\n' in data
    assert "naïve".encode() in data
    assert data.endswith(b"\n}\n")


def test_files_and_sizes():
    assert METADATA.files() == {PART.path: 100, LOG.path: 20}
    assert with_paths(native="files/a").files() == {"sources/a": 20, "files/a": 50}
    sizes = {state.id: (state.rows, state.size) for state in METADATA.states}
    assert sizes == {("op", "state"): (7, 100), ("op", "seen"): (0, 0)}


# -- damage


def test_cut_at_every_length_it_is_never_valid():
    data = encode(METADATA)
    for length in range(len(data)):
        with pytest.raises(CorruptFileError, match="the-file"):
            decode(data[:length], "the-file")


def test_every_flipped_bit_is_corruption_and_nothing_else():
    data = encode(METADATA)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFileError, match="the-file"):
            decode(bytes(broken), "the-file")


def test_many_random_changes_are_corruption():
    data = encode(METADATA)
    dice = random.Random(7)
    for _ in range(2000):
        broken = bytearray(data)
        for _ in range(dice.randint(1, 5)):
            broken[dice.randrange(len(broken))] = dice.randrange(256)
        if broken != data:
            with pytest.raises(CorruptFileError):
                decode(bytes(broken), "f")


def test_anything_added_or_laid_out_anew_is_corruption():
    data = encode(METADATA)
    compact = json.dumps(json.loads(data)).encode()
    for broken in (data + b"\n", b"\n" + data, data + data, compact, b"", b"{}", b"\0" * 1000):
        with pytest.raises(CorruptFileError):
            decode(broken, "f")


def test_a_newer_format_names_both_versions(monkeypatch):
    monkeypatch.setattr(module, "FORMAT", 7)
    data = encode(METADATA)
    monkeypatch.undo()
    with pytest.raises(FormatVersionError, match=r"the-file.*version 7.*version 1\b"):
        decode(data, "the-file")


# -- strangers

PATHS = [
    "/etc/passwd",
    "../state/x",
    "state/../../x",
    "state/..",
    "state/./x",
    "state//x",
    "state/x/",
    "state",
    "",
    "x",
    "_metadata.json",
    "sources/x",
    "files/x",
    "State/x",
    "state\\x",
    "state/..\\x",
    "state/a\0b",
    "state/a\nb",
    "state/\x7f",
    "state/.turnback-tmp-x",
    "file:///state/x",
    "s3://state/x",
    "C:/x",
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_could_lead_elsewhere_are_refused(path, monkeypatch):
    for metadata in (
        with_paths(part=path),
        with_paths(log=path.replace("sources", "state")),
        with_paths(native=path.replace("files", "state")),
    ):
        with pytest.raises(CorruptFileError, match=r"the-file.*path.*trust"):
            decode(forged(metadata, monkeypatch), "the-file")
        with pytest.raises(ValueError, match="0f3c"):
            encode(metadata)


def test_segments_of_any_name_are_paths():
    for path in ("state/%2E%2E/a%2Fb/c", "state/a~b/..c/d..", "state/a b/ü/c"):
        assert decode(encode(with_paths(part=path)), "f").files()[path] == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"states": METADATA.states * 2},
        {"native": (NATIVE,)},
        {"states": (), "native": (replace(NATIVE, inline=b"x"),)},
        {"max_parallelism": 63},
        {"states": (SavedState(state_schema(), 7, (replace(PART, first_group=64),)),)},
    ],
)
def test_metadata_that_contradicts_itself_is_refused(changes, monkeypatch):
    with pytest.raises(CorruptFileError, match="the-file is intact but"):
        decode(forged(replace(METADATA, **changes), monkeypatch), "the-file")


@pytest.mark.parametrize(
    "changes",
    [
        {"max_parallelism": 0},
        {"max_parallelism": 1 << 20},
        {"type": "magic"},
        {"job": None},
        {"states": (SavedState(state_schema(), 7, (replace(PART, length=-1),)),)},
        {"states": (SavedState(state_schema(), -7),)},
    ],
)
def test_values_that_cannot_be_are_refused(changes, monkeypatch):
    with pytest.raises(CorruptFileError, match="the-file is intact but"):
        decode(forged(replace(METADATA, **changes), monkeypatch), "the-file")


def test_nesting_without_end_is_refused(monkeypatch):
    deep = msgspec.Raw(b"[" * 100_000 + b"]" * 100_000)
    schema = replace(state_schema(), value=deep)
    monkeypatch.setattr(msgspec.json, "format", lambda data, indent: laid_out(data))
    data = forged(replace(METADATA, states=(SavedState(schema),)), monkeypatch)
    with pytest.raises(CorruptFileError, match="the-file"):
        decode(data, "the-file")


def laid_out(data: bytes) -> bytes:
    head = module._HEAD.format(module.KIND, module.FORMAT, "").encode()
    return head + data[data.index(b'"savepoint":') + len(b'"savepoint":') : -1] + b"\n}"
