"""Connectors of other packages, which are found by their entry points."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from turnback import PrintSink
from turnback.checkpoint import source_offsets
from turnback.checkpoint.source_offsets import open_partitions, partition_positions
from turnback.connectors.registry import sink_from_description

CODE = """
from turnback import PrintSink
from turnback.checkpoint.source_offsets import PartitionPosition, offset_of

class Pigeon(PrintSink):
    @classmethod
    def from_description(cls, description):
        return cls(description["loft"])

def positions(offset):
    flown = offset_of(offset, "pigeon").get("flown", {})
    return [PartitionPosition(loft, f"{loft} after {n}", n > 9) for loft, n in flown.items()]
"""
ENTRY_POINTS = """
[turnback.sinks]
pigeon = pigeon_post:Pigeon
[turnback.offsets]
pigeon = pigeon_post:positions
"""


@pytest.fixture
def _pigeon_post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with a connector."""
    (tmp_path / "pigeon_post.py").write_text(CODE)
    metadata = tmp_path / "pigeon_post-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    source_offsets._readers.cache_clear()
    yield
    source_offsets._readers.cache_clear()


@pytest.mark.usefixtures("_pigeon_post")
def test_a_sink_is_made_from_its_description() -> None:
    sink = sink_from_description({"kind": "pigeon", "loft": "north"})
    assert isinstance(sink, PrintSink)
    assert type(sink).__name__ == "Pigeon"


@pytest.mark.usefixtures("_pigeon_post")
def test_offsets_are_read_by_their_connector() -> None:
    offset = '{"source": "pigeon", "flown": {"north": 3, "south": 10}}'
    assert [each.text for each in partition_positions(offset)] == [
        "north after 3",
        "south after 10",
    ]
    assert open_partitions(offset) == ("north",)


def test_what_no_connector_knows_has_neither() -> None:
    assert sink_from_description({"kind": "pigeon", "loft": "north"}) is None
    assert sink_from_description({}) is None
    assert partition_positions('{"source": "pigeon", "flown": {"north": 3}}') == []
    assert partition_positions("not JSON") == []
    assert partition_positions(None) == []
