"""Sections of a Markdown file that are written by different programs, between markers."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "RESULTS.md"


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, **quick: Any
) -> argparse.Namespace:
    """Parse the arguments of a program that writes a section of RESULTS.md.

    With --quick, which is only to see that it runs, it takes the values of `quick` and `output` is
    None unless one was given.
    """
    parser.add_argument(
        "--quick", action="store_true", help="little of it, to see that it runs: no RESULTS.md"
    )
    parser.add_argument("--output", type=Path, help="whose section to write instead")
    given = parser.parse_args(argv)
    if given.quick:
        vars(given).update(quick)
    elif given.output is None:
        given.output = RESULTS
    return given


def put(text: str, name: str, body: str) -> str:
    """Put `body` where the section is, or at the end if there is none yet."""
    section = f"<!-- {name} -->\n\n{body.strip()}\n\n<!-- /{name} -->"
    if find(text, name):
        return _pattern(name).sub(lambda _: section, text)
    return f"{text.rstrip()}\n\n{section}\n".lstrip()


def write(path: Path, name: str, body: str) -> None:
    """Put `body` into a file, which need not be there yet, and say so."""
    path.write_text(put(path.read_text() if path.exists() else "", name, body))
    print(f"written to {path}", file=sys.stderr)


def find(text: str, name: str) -> str:
    """The body of the section, empty if there is none."""
    found = _pattern(name).search(text)
    return found[1].strip() if found else ""


def keep(text: str, old: str) -> str:
    """Add all sections of `old` to a text that has none: other programs have written them."""
    for name in re.findall(r"<!-- /([\w-]+) -->", old):
        text = put(text, name, find(old, name))
    return text


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", re.DOTALL)
