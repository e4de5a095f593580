"""Files that a page names are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
FILE = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)*\.(?:py|md|sh))`")
BELOW = (ROOT, ROOT / "src/turnback", ROOT / "tests")


def missing(text: str, page: Path) -> list[str]:
    below = (*BELOW, page.parent)
    return [name for name in FILE.findall(text) if not any((b / name).exists() for b in below)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert missing(page.read_text(), page) == []


def test_a_file_that_is_gone_is_noticed() -> None:
    assert missing("see `state/gone.py` and `api/streams.py`", ROOT / "README.md") == [
        "state/gone.py"
    ]


def test_folders_of_the_coverage_table_exist() -> None:
    text = (ROOT / "docs/coverage.md").read_text()
    names = re.findall(r"`((?:unit/)?[a-z_]+/?)`", text)
    folders = [name for name in names if name.endswith("/") or name.startswith("unit/")]
    assert folders
    assert [name for name in folders if not any((b / name).is_dir() for b in BELOW)] == []
