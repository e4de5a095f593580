"""Dead letters are read from wherever a sink has put them."""

import io
import json
from base64 import b64encode

import deltalake
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from turnback.errors import ConfigurationError, NotFoundError
from turnback.operations.dead_letters import read_letters
from unit.letter_support import letter

LETTERS = [letter(1), letter(2)]
TABLE = pa.table({"operator": ["parsed", "parsed"], "data": LETTERS})


def lines(letters=LETTERS):
    return "".join(json.dumps({"data": b64encode(data).decode()}) + "\n" for data in letters)


def read(*places, piped=""):
    return read_letters([str(place) for place in places], io.StringIO(piped))


@pytest.mark.parametrize("name", ["l.json", "l.jsonl", "l.parquet", "l.csv"])
def test_files(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(TABLE, path)
    elif name.endswith("csv"):
        text = [b64encode(data).decode() for data in LETTERS]
        pacsv.write_csv(TABLE.set_column(1, "data", pa.array(text)), path)
    else:
        path.write_text(lines())
    assert read(path) == LETTERS
    assert read(path, path) == LETTERS


def test_a_directory_without_what_is_hidden_in_it(tmp_path):
    (tmp_path / ".turnback").mkdir()
    (tmp_path / ".turnback" / "open.json").write_text("{}")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "day=1").mkdir()
    (tmp_path / "a.json").write_text(lines(LETTERS[:1]))
    (tmp_path / "day=1" / "b.json").write_text(lines(LETTERS[1:]))
    assert read(tmp_path) == LETTERS


def test_a_delta_table_without_files_that_are_no_longer_part_of_it(tmp_path):
    deltalake.write_deltalake(str(tmp_path), pa.table({"data": [letter(9)]}))
    deltalake.write_deltalake(str(tmp_path), TABLE.select(["data"]), mode="overwrite")
    assert read(tmp_path) == LETTERS


def test_what_is_piped_in(tmp_path):
    assert read("-", piped=lines() + "\n") == LETTERS


@pytest.mark.parametrize("text", ["nonsense", "[]", "{}", '{"data": 1}', '{"data": "AAAA"}', '"%"'])
def test_what_is_no_letter(text):
    with pytest.raises(ConfigurationError, match="standard input, row 2 is not a dead letter"):
        read("-", piped=lines(LETTERS[:1]) + text)


def test_places_that_cannot_be_read(tmp_path):
    with pytest.raises(NotFoundError, match="does not exist"):
        read(tmp_path / "missing")
    (tmp_path / "letters.orc").write_text("")
    with pytest.raises(ConfigurationError, match=r"end in .json, .jsonl, .ndjson, .parquet or"):
        read(tmp_path / "letters.orc")
    (tmp_path / "letters.parquet").write_text("no parquet")
    with pytest.raises(ConfigurationError, match="cannot be read as Parquet"):
        read(tmp_path / "letters.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "letters.parquet")
    with pytest.raises(ConfigurationError, match="no column 'data'"):
        read(tmp_path / "letters.parquet")
