"""The documentation names every key there is, and no other; and all of it starts fast."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from turnback import StreamExecutionEnvironment
from turnback.config.configuration import Configuration, parse_pairs, variable_of
from turnback.config.options import OPTIONS, SPELLINGS, table

MODULE = "turnback.config.options"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_table_is_that_of_the_code():
    printed = subprocess.run(
        [sys.executable, "-m", "turnback.config.options"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == table()
    lines = PAGE.read_text().splitlines(keepends=True)
    shown = "".join(line for line in lines if line.startswith("|"))
    assert shown == printed, "put what `python -m turnback.config.options` prints into the page"


def test_every_key_has_its_row():
    rows = re.findall(r"^\| `([^`]+)` \|.*\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    names = [key for key, _ in rows] + [
        n for _, other in rows for n in re.findall("`(.*?)`", other)
    ]
    assert sorted(names) == sorted([*SPELLINGS, "spark.*"])


def test_keys_are_declared_once_and_described():
    assert [option.key for option in OPTIONS] == sorted({option.key for option in OPTIONS})
    assert len(set(SPELLINGS)) == len(SPELLINGS)
    variables: dict[str, str] = {}
    for option in OPTIONS:
        assert re.fullmatch(r"[A-Z`][^|\n]*\.", option.doc), option.key
        assert "|" not in (option.default or ""), option.key
        for name in option.spellings:
            assert re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)+|restart-strategy", name)
            assert variables.setdefault(variable_of(name), option.key) == option.key


def test_what_the_page_shows_is_accepted(tmp_path, monkeypatch):
    text = PAGE.read_text()
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "turnback.yaml").write_text(shown)
    environ = dict(re.findall(r"^export (\w+)='?([^'\n]*)'?$", text, re.MULTILINE))
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {"StreamExecutionEnvironment": StreamExecutionEnvironment}
    monkeypatch.chdir(tmp_path)
    exec(code, found)
    assert found["env"].configuration.value("state.backend.type") == "hashmap"
    assert found["env"].configuration.value("state.checkpoints.dir") == "/data/turnback"
    pairs = re.findall(r"-D '?([\w-]+\.[\w.-]+=[^'` \n]+)", text)
    configuration = Configuration.load(
        None, parse_pairs(pairs), environ=environ, directory=tmp_path
    )
    origins = {entry.origin for entry in configuration.entries()}
    assert environ.keys() & origins
    assert {"default", "turnback.yaml", "-D"} <= origins


def test_nothing_heavy_is_imported():
    heavy = ("pyarrow", "pyspark", "pandas", "numpy")
    program = (
        "import sys, turnback.config.options\n"
        "from turnback.config.configuration import Configuration\n"
        "Configuration.load().entries()\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
