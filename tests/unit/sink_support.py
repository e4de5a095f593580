"""Posts, and what file sinks make of them."""

from pathlib import Path

from turnback.values.columns import Batch
from turnback.values.typeinfo import Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
FORMATS = ["parquet", "json", "csv"]


def posts(*rows):
    return Batch(POSTS, list(rows))


def visible(root: Path, extension: str) -> list[str]:
    """What the usual ways of looking for files find."""
    shallow = {p.name for p in root.glob(f"*.{extension}")}
    deep = {p.name for p in root.rglob(f"*.{extension}")}
    listed = {p.name for p in root.iterdir() if p.is_file()} if root.exists() else set()
    assert shallow == deep == listed
    return sorted(deep)


def staged(root: Path) -> list[str]:
    return sorted(p.name for p in root.rglob("*.inprogress"))


def write(sink, ctx, *rows):
    writer = sink.writer(ctx)
    writer.write(posts(*rows))
    return writer.prepare()
