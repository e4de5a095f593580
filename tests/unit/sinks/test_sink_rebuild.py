"""Sinks say what they are, and are made anew from that."""

from pathlib import Path

import pytest

from turnback.connectors.files.sink import FileSink
from turnback.connectors.registry import sink_from_description
from turnback.errors import ConfigurationError
from turnback.sinks.memory import CollectSink, DiscardSink, PrintSink


def test_a_file_sink(tmp_path):
    sink = FileSink(tmp_path / "out", "csv", prefix="rows", header=False)
    again = sink_from_description(sink.describe())
    assert isinstance(again, FileSink)
    assert vars(again) == vars(sink)


def test_a_print_sink():
    again = sink_from_description(PrintSink("x").describe())
    assert isinstance(again, PrintSink)
    assert again.prefix == "x"


@pytest.mark.parametrize(
    "description",
    [CollectSink().describe(), DiscardSink().describe(), {"kind": "Ledger"}, {}],
)
def test_sinks_that_cannot_be_made_anew(description):
    assert sink_from_description(description) is None


@pytest.mark.parametrize(
    "description",
    [
        {"kind": "file"},
        {"kind": "file", "path": ""},
        {"kind": "file", "path": "s3://bucket/x"},
        {"kind": "file", "path": "/x", "format": "orc"},
        {"kind": "file", "path": str(Path(__file__))},
    ],
)
def test_descriptions_that_cannot_be_used(description):
    with pytest.raises(ConfigurationError):
        sink_from_description(description)
