"""Dead letters: shown, exported and fed back."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.core.extras import require
from turnback.errors import ConfigurationError, NotFoundError
from turnback.job.redrive import RedriveInbox
from turnback.plan.bad_records import decode_letter
from turnback.views.job import Job

_COLUMN = "data"
_JSON = (".json", ".jsonl", ".ndjson")
STDIN = "-"


def read_letters(places: Iterable[str], stdin: TextIO) -> list[bytes]:
    """Read dead letters, each once.

    From files that end in .json, .jsonl, .ndjson, .parquet or .csv, directories with such files,
    directories of Delta tables; or "-" for lines of JSON that are piped in as `stdin`.
    """
    found: dict[bytes, None] = {}
    for place in places:
        where = "standard input" if place == STDIN else place
        for row, value in enumerate(_json(stdin) if place == STDIN else _values(Path(place)), 1):
            found[_letter(value, f"{where}, row {row}")] = None
    return list(found)


def _values(path: Path) -> Iterator[Any]:
    """The column `data` of what is at a path."""
    if not path.exists():
        raise NotFoundError(f"{path} does not exist: use the output of the dead letters' sink")
    if (path / "_delta_log").is_dir():
        yield from _delta(path)
    elif path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        for file in files:
            inside = file.relative_to(path).parts
            if not any(part.startswith((".", "_")) for part in inside):
                yield from _values(file)
    elif path.suffix in _JSON:
        with path.open(encoding="utf-8") as lines:
            yield from _json(lines)
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix == ".csv":
        yield from _csv(path)
    else:
        raise ConfigurationError(
            f"{path}: files with dead letters end in {', '.join(_JSON)}, .parquet or .csv; or "
            f"pipe them in as JSON lines: ... | turnback redrive JOB {STDIN}"
        )


def _json(lines: Iterable[str]) -> Iterator[Any]:
    for line in lines:
        if line.strip():
            try:
                row = msgspec.json.decode(line)
            except msgspec.DecodeError:
                row = None
            yield row.get(_COLUMN) if isinstance(row, dict) else None


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[_COLUMN]):
                yield from _column(batch, path)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{path} cannot be read as Parquet: {error}") from error


def _csv(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    try:
        yield from _column(csv.read_csv(path), path)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{path} cannot be read as CSV: {error}") from error


def _delta(path: Path) -> Iterator[Any]:
    deltalake = require("deltalake", "delta", f"to read the Delta table {path}")
    for batch in deltalake.DeltaTable(str(path)).to_pyarrow_dataset().to_batches():
        yield from _column(batch, path)


def _column(rows: Any, path: Path) -> list[Any]:
    if _COLUMN not in rows.schema.names:
        raise ConfigurationError(f"{path} has no column {_COLUMN!r}, so it has no dead letters")
    values: list[Any] = rows.column(_COLUMN).to_pylist()
    return values


def _letter(value: Any, where: str) -> bytes:
    """The bytes of a letter; text has them in Base64."""
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else value
        if not isinstance(data, bytes):
            raise ConfigurationError(f"it has no {_COLUMN!r}")
        decode_letter(data)
    except (ConfigurationError, binascii.Error) as error:
        raise ConfigurationError(
            f"{where} is not a dead letter: {error}. Use rows from dead_letters(); of their "
            f"columns, {_COLUMN!r} is required"
        ) from None
    return data


class RedriveRow(msgspec.Struct, frozen=True, kw_only=True):
    """How it is with dead letters that were to be given back to a job.

    Attributes:
        letters: How many there were.
        given: How many of them were given back now.
        before: How many had been given back before, and were left alone.
        fed: How many the job has been fed, once it has confirmed them.
        coming: How many it was not, because it was turned back to a time before them, so that their
            elements come again.
        refused: How many it was not for another reason, by that.
        done: Whether a checkpoint has confirmed all of it.
    """

    job: str
    letters: int
    given: int = 0
    before: int = 0
    fed: int = 0
    coming: int = 0
    refused: dict[str, int] = {}
    done: bool = False


class Redrive:
    """Dead letters on their way back to the job that wrote them, as `read_letters` gives them."""

    def __init__(self, job: Job, letters: Sequence[bytes], operator: str | None = None) -> None:
        self._job = job
        job_id = job.info().job_id
        self._inbox = RedriveInbox(job.directory.storage, job_id)
        decoded = [(data, decode_letter(data)) for data in letters]
        uids = sorted({letter.operator for _, letter in decoded})
        if operator is not None and operator not in uids:
            raise ConfigurationError(
                f"there are no dead letters of operator {operator!r}; operators with dead "
                f"letters: {', '.join(map(repr, uids)) or 'none'}"
            )
        others = sum(letter.job_id != job_id for _, letter in decoded)
        if others:
            raise ConfigurationError(
                f"{others} of {len(decoded)} dead letters do not belong to the current job "
                f"{job.name!r}: they are from another job, or from before it was started fresh. "
                "Redrive the dead letters of each job separately"
            )
        self._letters = [
            data for data, letter in decoded if operator is None or letter.operator == operator
        ]
        self._batches: list[int] = []
        self._given = 0

    def count(self) -> RedriveRow:
        """What `give` would do."""
        known = self._inbox.known(self._inbox.numbers())
        before = sum(decode_letter(data).id in known for data in self._letters)
        count = len(self._letters)
        return RedriveRow(job=self._job.name, letters=count, given=count - before, before=before)

    def give(self) -> RedriveRow:
        """Give the letters back that have not been yet; the job takes them when it runs."""
        self._batches = self._inbox.add(self._letters)
        self._given = sum(len(self._inbox.batch(number).letters) for number in self._batches)
        return self.look()

    def look(self) -> RedriveRow:
        """How far the job is with them."""
        latest = CheckpointLog(self._job.directory.storage).latest()
        upto = latest.redriven.batches if latest is not None else 0
        done = [number for number in self._batches if number <= upto]
        outcomes = [outcome for n in done if (outcome := self._inbox.outcome(n)) is not None]
        refused: Counter[str] = Counter()
        for outcome in outcomes:
            refused.update({why: len(places) for why, places in outcome.refused.items()})
        return RedriveRow(
            job=self._job.name,
            letters=len(self._letters),
            given=self._given,
            before=len(self._letters) - self._given,
            fed=sum(outcome.fed for outcome in outcomes),
            coming=sum(outcome.coming for outcome in outcomes),
            refused=dict(refused),
            done=len(done) == len(self._batches),
        )
