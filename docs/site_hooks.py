"""Hooks for the site: the README is its first page, and files outside of docs/ have no link."""

import re
from pathlib import Path

from mkdocs.structure.files import File

_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)]*)\)")
_ROOT = Path(__file__).parent.parent


def on_files(files, config):
    """Add the first page."""
    readme = (_ROOT / "README.md").read_text()
    linked = re.sub(r"\]\((?!docs/|\w+://|#)([^)]*)\)", r"](../\1)", readme)
    content = linked.replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Show the paths of files that the site does not have, instead of links to them."""
    folder = (_ROOT / "docs" / page.file.src_uri).parent

    def shown(match):
        text, target = match[1], match[2]
        path = (folder / target.partition("#")[0]).resolve()
        if path.is_relative_to(_ROOT / "docs"):
            return match[0]
        return text if "/" in text else f"{text} (`{path.relative_to(_ROOT)}`)"

    return _LINK.sub(shown, markdown)
