import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from turnback.core.errors import ConfigurationError
from turnback.sinks.base import Committer, CommitterContext, Sink, SinkWriter, WriterContext
from turnback.sinks.file_committer import FileCommitter
from turnback.sinks.file_writer import FileWriter
from turnback.sinks.formats import FORMATS
from turnback.sinks.owner import Ownership
from turnback.sinks.staged import KIND


class FileSink(Sink):
    """Writes files into a directory, each visible once and only when its checkpoint is complete.

    Tasks write hidden files below `<path>/.turnback`; a commit renames them to
    `<prefix>-<epoch>-<partition>-<unique>.<format>`. No reader that looks for `*.parquet`,
    `*.json` or `*.csv`, however deep, and no reader that skips hidden names, as Spark and Arrow do,
    sees an unfinished or uncommitted one. A reader may move or delete what it has read.

    A directory belongs to one job, whose sinks can share it: the first job that writes there is
    recorded in it, and another, such as a fork, is refused unless `take_over_sinks` is set. It has
    to be on a file system that the driver and all executors mount at the same path, that renames
    atomically and has hard links.

    Formats (a stream that is not of rows has one column, `value`):

    - `parquet`: every type as it is.
    - `json`: one object per line. Dates, times and timestamps in ISO 8601 (`Z` for instants, no
      zone for local ones), bytes in base64, decimals as strings so that no digit is lost, NaN and
      the infinities as `"NaN"`, `"Infinity"`, `"-Infinity"`, rows and maps as objects.
    - `csv`: a null is empty, every string is quoted (an empty one is `""`). Text of other types as
      in `json`, except that NaN and the infinities are `nan`, `inf` and `-inf`; rows, lists and
      maps are JSON in one field. A quote inside of quotes is doubled and lines may be broken inside
      of them: for Spark's reader, `escape='"'`, `multiLine=True`, `nanValue="nan"`,
      `positiveInf="inf"`, `negativeInf="-inf"`, and `unbase64` on columns of bytes.

    Args:
        path: The directory; created when missing. Relative to the driver's working directory.
        format: "parquet", "json" or "csv".
        prefix: What file names begin with.
        header: Whether each CSV file starts with the names of the columns.

    Raises:
        ConfigurationError: An argument cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        prefix: str = "part",
        header: bool = True,
    ) -> None:
        if not isinstance(format, str) or format not in FORMATS:
            raise ConfigurationError(
                f"FileSink: unknown format {format!r}; allowed are {', '.join(sorted(FORMATS))}"
            )
        if not isinstance(header, bool):
            raise ConfigurationError(f"FileSink: header is True or False, not {header!r}")
        self.path = _directory(path)
        self.format = format
        self.prefix = _prefix(prefix)
        self.header = header

    def writer(self, ctx: WriterContext) -> SinkWriter:
        """Write one hidden file."""
        return FileWriter(self.path, self.format, self.prefix, self.header, ctx)

    def check_claim(self, ctx: CommitterContext) -> None:
        """Refuse a directory that is another job's."""
        _check_directory(self.path)
        Ownership(self.path, ctx).check_claim()

    def claim(self, ctx: CommitterContext) -> None:
        """Record the job as the owner of the directory, or refuse another job's directory."""
        _check_directory(self.path)
        Ownership(self.path, ctx).claim()

    def committer(self, ctx: CommitterContext) -> Committer:
        """Rename files into place; creates the directories, so a bad path fails at the start."""
        _check_directory(self.path)
        return FileCommitter(self.path, ctx)

    def describe(self) -> dict[str, str]:
        """Say where files go."""
        return {
            "kind": KIND,
            "path": str(self.path),
            "format": self.format,
            "prefix": self.prefix,
            "header": str(self.header).lower(),
        }

    def __repr__(self) -> str:
        return f"FileSink({str(self.path)!r}, {self.format!r})"


def _directory(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"FileSink: path is a string or a Path, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ConfigurationError(f"FileSink: {text!r} is not a path")
    if "://" in text:
        url = urlsplit(text)
        if url.scheme != "file" or url.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"FileSink: {text!r} is not a mounted file system, where a file can be renamed; "
                "give a path or file:///path"
            )
        text = unquote(url.path)
    directory = Path(text).absolute()
    _check_directory(directory)
    return directory


def _check_directory(path: Path) -> None:
    try:
        for part in (path, *path.parents):
            if part.exists() and not part.is_dir():
                raise ConfigurationError(f"FileSink: {part} is a file; it has to be a directory")
    except OSError as error:
        raise ConfigurationError(f"FileSink: cannot use {path}: {error.strerror}") from error


def _prefix(prefix: str) -> str:
    if not isinstance(prefix, str):
        raise ConfigurationError(f"FileSink: prefix is a string, not {prefix!r}")
    if not prefix or prefix[0] in "._" or "/" in prefix or not prefix.isprintable():
        raise ConfigurationError(
            f"FileSink: {prefix!r} cannot begin a file name; it must not be empty, hidden (a "
            "leading '.' or '_') or hold a '/'"
        )
    if len(prefix.encode()) > 100:
        raise ConfigurationError("FileSink: prefix is longer than 100 bytes")
    return prefix
