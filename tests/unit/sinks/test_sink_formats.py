"""What is written is read back with readers that know nothing of Turnback."""

import base64
import csv
import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from turnback.connectors.files.sink import FileSink
from turnback.values.columns import Batch, json_column
from turnback.values.typeinfo import Types

NESTED = Types.ROW_NAMED(["x", "y"], [Types.LONG(), Types.LIST(Types.BIG_DEC(10, 2))])
ODD = Types.ROW_NAMED(
    [
        "text",
        "long",
        "real",
        "flag",
        "dec",
        "big",
        "day",
        "clock",
        "local",
        "instant",
        "raw",
        "nested",
        "list",
        "map",
        "when",
    ],
    [
        Types.STRING(),
        Types.LONG(),
        Types.DOUBLE(),
        Types.BOOLEAN(),
        Types.BIG_DEC(38, 18),
        Types.BIG_INT(),
        Types.SQL_DATE(),
        Types.SQL_TIME(),
        Types.SQL_TIMESTAMP(),
        Types.INSTANT(),
        Types.BYTES(),
        NESTED,
        Types.LIST(Types.STRING()),
        Types.MAP(Types.STRING(), Types.DOUBLE()),
        Types.MAP(Types.SQL_DATE(), Types.BYTES()),
    ],
)
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456)
PLUS2 = timezone(timedelta(hours=2))
TEXTS = [
    'nul\0 "quoted", \n new\r\nline',
    "",
    "é e\u0301 😀 \u2028",
    "a,b;c\td\\n",
    "null",
    " x ",
    "-",
]
FULL = (
    TEXTS[0],
    -(2**63),
    0.1,
    True,
    Decimal("-12345678901234567890.000000000000000001"),
    10**37 + 1,
    date(1, 1, 1),
    time(23, 59, 59, 999999),
    NOON,
    NOON.replace(tzinfo=PLUS2),
    b"\0\xff\n\"',",
    (7, [Decimal("1.50"), None]),
    ["a", None, "", "\0"],
    {"k": 1.5, "": None},
    {date(2024, 1, 2): b"\0\1"},
)
EMPTY = (None,) * len(FULL)
ZERO = (
    "",
    0,
    -0.0,
    False,
    Decimal(0),
    0,
    date(9999, 12, 31),
    time(0),
    datetime(1, 1, 1),
    datetime(1970, 1, 1, tzinfo=UTC),
    b"",
    (None, []),
    [],
    {},
    {},
)


@pytest.fixture
def round_trip(tmp_path, writer_ctx, committer_ctx):
    def run(kind, rows, extension, **options) -> Path:
        sink = FileSink(tmp_path / extension, extension, **options)
        writer = sink.writer(writer_ctx(kind))
        for row in rows:  # several batches in one file
            writer.write(Batch(kind, [row]))
        sink.committer(committer_ctx()).commit([writer.prepare()])
        (path,) = (tmp_path / extension).glob(f"*.{extension}")
        return path

    return run


def test_parquet_has_every_value_and_type(round_trip):
    table = pq.read_table(round_trip(ODD, [FULL, EMPTY, ZERO], "parquet"))
    full, empty, zero = table.to_pylist()
    expected = dict(zip(ODD.names, FULL, strict=True))
    expected["nested"] = {"x": 7, "y": [Decimal("1.50"), None]}
    expected["map"] = [("k", 1.5), ("", None)]
    expected["when"] = [(date(2024, 1, 2), b"\0\1")]
    expected["instant"] = datetime(2024, 2, 29, 10, 0, 0, 123456, tzinfo=UTC)
    assert full == expected
    assert empty == dict.fromkeys(ODD.names)
    assert zero["text"] == "" and zero["raw"] == b"" and zero["list"] == []
    assert math.copysign(1, zero["real"]) == -1
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    assert types["instant"] == pa.timestamp("us", tz="UTC")
    assert types["local"] == pa.timestamp("us")
    assert types["dec"] == pa.decimal128(38, 18)
    assert types["day"] == pa.date32()


def test_json_lines(round_trip):
    data = round_trip(ODD, [FULL, EMPTY, ZERO], "json").read_bytes()
    assert data.endswith(b"\n") and data.count(b"\n") == 3
    full, empty, zero = (json.loads(line) for line in data.decode().split("\n")[:-1])
    assert full == {
        "text": TEXTS[0],
        "long": -(2**63),
        "real": 0.1,
        "flag": True,
        "dec": "-12345678901234567890.000000000000000001",
        "big": str(10**37 + 1),
        "day": "0001-01-01",
        "clock": "23:59:59.999999",
        "local": "2024-02-29T12:00:00.123456",
        "instant": "2024-02-29T10:00:00.123456Z",
        "raw": base64.b64encode(FULL[10]).decode(),
        "nested": {"x": 7, "y": ["1.50", None]},
        "list": ["a", None, "", "\0"],
        "map": {"k": 1.5, "": None},
        "when": {"2024-01-02": "AAE="},
    }
    assert list(full) == list(ODD.names)
    assert empty == dict.fromkeys(ODD.names)
    assert zero["dec"] == "0.000000000000000000" and zero["big"] == "0"
    assert zero["instant"] == "1970-01-01T00:00:00Z"
    assert zero["local"] == "0001-01-01T00:00:00"
    assert zero["nested"] == {"x": None, "y": []} and zero["map"] == {}


def test_csv(round_trip):
    path = round_trip(ODD, [FULL, EMPTY, ZERO], "csv")
    with path.open(newline="", encoding="utf-8") as file:
        full, empty, zero = csv.DictReader(file)
    assert list(full) == list(ODD.names)
    assert empty == dict.fromkeys(ODD.names, "")
    nested = {n: json.loads(full.pop(n)) for n in ("nested", "list", "map", "when")}
    assert nested == {
        "nested": {"x": 7, "y": ["1.50", None]},
        "list": ["a", None, "", "\0"],
        "map": {"k": 1.5, "": None},
        "when": {"2024-01-02": "AAE="},
    }
    assert full == {
        "text": TEXTS[0],
        "long": str(-(2**63)),
        "real": "0.1",
        "flag": "true",
        "dec": "-12345678901234567890.000000000000000001",
        "big": str(10**37 + 1),
        "day": "0001-01-01",
        "clock": "23:59:59.999999",
        "local": "2024-02-29T12:00:00.123456",
        "instant": "2024-02-29T10:00:00.123456Z",
        "raw": base64.b64encode(FULL[10]).decode(),
    }
    assert zero["dec"] == "0.000000000000000000"
    assert float(zero["real"]) == 0 and zero["real"].startswith("-")
    assert zero["nested"] == '{"x":null,"y":[]}' and zero["list"] == "[]"


def test_csv_tells_null_from_the_empty_string(round_trip):
    kind = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.BYTES()])
    path = round_trip(kind, [(None, None), ("", b"")], "csv")
    assert path.read_bytes() == b'"a","b"\n,\n"",""\n'
    options = pacsv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    table = pacsv.read_csv(path, convert_options=options)
    assert table["a"].to_pylist() == [None, ""]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("extension", ["parquet", "json", "csv"])
def test_text_of_a_stream_without_rows(round_trip, extension, text):
    path = round_trip(Types.STRING(), [text, "next"], extension)
    if extension == "parquet":
        found = pq.read_table(path)["value"].to_pylist()
    elif extension == "json":
        found = [json.loads(x)["value"] for x in path.read_bytes().decode().split("\n")[:-1]]
    else:
        with path.open(newline="", encoding="utf-8") as file:
            found = [row["value"] for row in csv.DictReader(file)]
    assert found == [text, "next"]


@pytest.mark.parametrize("kind", [Types.DOUBLE(), Types.FLOAT()])
def test_not_finite_numbers(round_trip, kind):
    values = [math.nan, math.inf, -math.inf, 1.5, None]
    back = pq.read_table(round_trip(kind, values, "parquet"))["value"].to_pylist()
    assert math.isnan(back[0]) and back[1:] == values[1:]
    lines = round_trip(kind, values, "json").read_text().splitlines()
    assert [json.loads(x)["value"] for x in lines] == ["NaN", "Infinity", "-Infinity", 1.5, None]
    assert "NaN," not in "".join(lines) and '"NaN"' in lines[0]
    text = round_trip(kind, values, "csv", header=False).read_text()
    assert text.splitlines() == ["nan", "inf", "-inf", "1.5", ""]


def test_not_finite_numbers_inside_of_others(round_trip):
    kind = Types.ROW_NAMED(
        ["row", "list", "map"],
        [
            Types.ROW_NAMED(["d"], [Types.DOUBLE()]),
            Types.LIST(Types.LIST(Types.FLOAT())),
            Types.MAP(Types.LONG(), Types.DOUBLE()),
        ],
    )
    path = round_trip(kind, [((math.nan,), [[math.inf], None], {3: -math.inf})], "json")
    expected = {"row": {"d": "NaN"}, "list": [["Infinity"], None], "map": {"3": "-Infinity"}}
    assert json.loads(path.read_text()) == expected


def test_odd_column_names(round_trip):
    names = ["a,b", 'q"q', "new\nline", "count", "é", "value"]
    kind = Types.ROW_NAMED(names, [Types.LONG()] * len(names))
    rows = [tuple(range(len(names)))]
    expected = dict(zip(names, range(len(names)), strict=True))
    assert pq.read_table(round_trip(kind, rows, "parquet")).to_pylist() == [expected]
    assert json.loads(round_trip(kind, rows, "json").read_text()) == expected
    with round_trip(kind, rows, "csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert {k: int(v) for k, v in row.items()} == expected


def test_pickled_objects_are_bytes_in_every_format(round_trip):
    kind = Types.PICKLED_BYTE_ARRAY()
    raw = pq.read_table(round_trip(kind, [{1, 2}], "parquet"))["value"].to_pylist()
    line = json.loads(round_trip(kind, [{1, 2}], "json").read_text())
    assert base64.b64decode(line["value"]) == raw[0]


@pytest.mark.parametrize("extension", ["parquet", "json", "csv"])
def test_large_values(round_trip, extension):
    text = "é" * (4 * 1024 * 1024)
    path = round_trip(Types.STRING(), [text], extension)
    if extension == "parquet":
        assert pq.read_table(path)["value"].to_pylist() == [text]
    else:
        assert path.read_text(encoding="utf-8").count("é") == len(text)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_are_what_arrow_makes_of_them(zone: str | None) -> None:
    ends = [-62_135_596_800_000_000, 253_402_300_799_999_999]
    column = pa.array([0, 1, -1, None, 1_700_000_000_123_456, *ends], pa.timestamp("us", zone))
    assert json_column(column) == column.to_pylist()
    encode = msgspec.json.encode
    assert encode(json_column(column)) == encode(column.to_pylist())
    assert json_column(column[:0]) == []
