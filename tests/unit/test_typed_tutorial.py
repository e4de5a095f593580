"""The tutorial can be typed, or pasted, into `python -i`: there an empty line ends a block."""

from __future__ import annotations

import re
from code import compile_command
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE)


def type_in(block: str) -> None:
    """Take a block line by line as the prompt does; raises SyntaxError where it would complain."""
    typed: list[str] = []
    for line in [*block.splitlines(), ""]:
        typed.append(line)
        if compile_command("\n".join(typed), symbol="single") is not None:
            typed = []
    assert not typed, f"the prompt waits for more after {typed}"


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_can_be_typed(block: str) -> None:
    type_in(block)


def test_what_cannot_be_typed_is_found() -> None:
    with pytest.raises(SyntaxError):
        type_in("class A:\n    a = 1\n\n    b = 2\n")
    with pytest.raises(SyntaxError):
        type_in("def f():\n    pass\nf()\n")
