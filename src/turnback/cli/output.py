"""What commands print: tables on a terminal, plain text in a pipe, or one JSON document."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from turnback.core.clock import SystemClock
from turnback.core.units import format_age, format_size, round_duration

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "-"
"""Stands where there is no value, so that every line has the same number of columns."""
_COLORS = {
    "green": ("RUNNING", "COMPLETED", "restored", "ok", "added"),
    "blue": ("FINISHED",),
    "cyan": ("new",),
    "yellow": ("migrated", "unclaimed", "warn", "changed"),
    "red": ("removed",),
    "bold red": ("FAILED", "LOST", "STALLED", "UNREADABLE", "incompatible", "fail"),
    "dim": ("CANCELED",),
}
_STYLES = {state: color for color, states in _COLORS.items() for state in states}
_IN_PROGRESS = "yellow"
_NARROW = 26
_RECENT_MS = 7 * 86_400_000
_SHORT_ID = 8

T = TypeVar("T")


class Cell(NamedTuple):
    """A value in a table, and the style of rich that it has on a terminal."""

    text: str
    style: str = ""


Value = Cell | str | int | None


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table; one that is `extra` is left out where a terminal is too narrow."""

    name: str
    value: Callable[[T, Output], Value] = lambda record, out: None
    right: bool = False
    extra: bool = False


class Output:
    """Where a command prints: results to stdout, everything else to stderr.

    With `json` stdout gets one JSON document and nothing else.
    """

    def __init__(self, *, json: bool = False, color: bool = True) -> None:
        self.json = json
        self.color = color and not os.environ.get("NO_COLOR")
        self.terminal = sys.stdout.isatty() and not json

    # -- results

    def document(self, value: Any) -> None:
        """Print structs, dataclasses and plain values as JSON."""
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

    def line(self, line: str, style: str = "") -> None:
        if self.terminal and style:
            self._console().print(printable(line), style=style, markup=False, highlight=False)
        else:
            print(printable(line))

    def head(self, title: str) -> None:
        """Print the title of what follows, after an empty line."""
        print()
        self.line(title, "bold")

    def fields(self, pairs: Iterable[tuple[str, Value]]) -> None:
        """Print names and values, one pair a line; those without a value are left out."""
        given = [(name, _cell(value)) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in given), default=0)
        for name, cell in given:
            if self.terminal:
                from rich.text import Text

                line = Text().append(f"{name.ljust(width)}  ", "dim").append(*cell)
                self._console().print(line, soft_wrap=True)
            else:
                print(f"{name.ljust(width)}  {cell.text}")

    def records(
        self, columns: Sequence[Column[T]], records: Sequence[T], if_none: str | None = None
    ) -> None:
        """Print a line for each record below a head, or all as JSON.

        On a terminal a table without records is left out, or `if_none` stands in its place.
        """
        if self.json:
            self.document(records)
        elif records or not self.terminal:
            self.table(columns, [[column.value(r, self) for column in columns] for r in records])
        elif if_none is not None:
            self.line(if_none)

    def section(self, title: str, columns: Sequence[Column[T]], records: Sequence[T]) -> None:
        """Print records below a title; nothing if there are none."""
        if records:
            self.head(title)
            self.records(columns, records)

    def table(self, columns: Sequence[Column[Any] | str], rows: Iterable[Sequence[Value]]) -> None:
        """Print rows below a head; in a pipe one line each, nothing cut off.

        On a terminal columns without any value are left out.
        """
        heads = [c if isinstance(c, Column) else Column[Any](c) for c in columns]
        cells = [[_cell(value) for value in row] for row in rows]
        if self.terminal:
            self._rich_table(heads, cells)
        else:
            _plain_table(heads, cells)

    # -- forms of values

    def time(self, ms: int | None) -> str | None:
        """Return a time: exact, and if recent how long ago, on a terminal; ISO in a pipe."""
        if ms is None:
            return None
        if not self.terminal:
            return utc_time(ms)
        now = SystemClock().now_ms()
        exact = local_time(ms, now)
        return f"{exact} ({time_ago(ms, now)})" if now - ms < _RECENT_MS else exact

    def id(self, id: str | None) -> str | None:
        """Return an id: on a terminal as much of it as a command needs to find it again."""
        return id[:_SHORT_ID] if id is not None and self.terminal else id

    def size(self, size: int | None) -> str | None:
        """Return a size: with a unit on a terminal, in bytes in a pipe."""
        if size is None:
            return None
        return format_size(size) if self.terminal else str(size)

    def duration(self, ms: float | None) -> str | None:
        """Return a duration: with units on a terminal, in milliseconds in a pipe."""
        if ms is None:
            return None
        return round_duration(round(ms)) if self.terminal else str(round(ms))

    def number(self, number: float | None) -> str | None:
        """Return a number: in groups of three digits on a terminal."""
        if number is None:
            return None
        return f"{number:,}" if self.terminal else str(number)

    def state(self, state: str) -> Cell:
        return Cell(state, _STYLES.get(state, _IN_PROGRESS if state.isupper() else ""))

    # -- everything else

    def message(self, message: str, style: str = "") -> None:
        if style and self.color and sys.stderr.isatty():
            self.stderr().print(printable(message), style=style, markup=False, highlight=False)
        else:
            print(printable(message), file=sys.stderr)

    def hint(self, message: str) -> None:
        """Print advice to stderr, if a person reads it."""
        if sys.stderr.isatty() and not self.json:
            self.message(message, "dim")

    @contextmanager
    def bytes_bar(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show a bar on a terminal; the function it gives moves it, to bytes done of a total."""
        console = self.stderr()
        if not console.is_terminal or self.json:
            yield lambda done, total: None
            return
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TransferSpeedColumn,
        )

        sizes = (DownloadColumn(binary_units=True), TransferSpeedColumn())
        with Progress(
            TextColumn(what), BarColumn(), *sizes, console=console, transient=True
        ) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def stderr(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, no_color=not self.color, soft_wrap=True)

    def _console(self) -> Console:
        from rich.console import Console

        return Console(no_color=not self.color)

    def _rich_table(self, columns: Sequence[Column[Any]], rows: Sequence[Sequence[Cell]]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        console = self._console()
        widths = [
            max([len(column.name), *(len(row[i].text) for row in rows)])
            for i, column in enumerate(columns)
        ]
        used = _visible_columns(columns, rows, widths, console.width)
        narrow = {i for i in used if widths[i] <= _NARROW}
        # Cutting off is worse than folding: values are to be copied.
        fits = sum(widths[i] if i in narrow else _NARROW for i in used) + 2 * len(used)
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
            header_style="bold",
        )
        for i in used:
            table.add_column(
                columns[i].name,
                justify="right" if columns[i].right else "left",
                overflow="fold",
                no_wrap=i in narrow and fits <= console.width,
            )
        for row in rows:
            table.add_row(*(Text(row[i].text, row[i].style) for i in used))
        console.print(table)


def _plain_table(columns: Sequence[Column[Any]], rows: Sequence[Sequence[Cell]]) -> None:
    heads = [column.name.upper().replace(" ", "_") for column in columns]
    lines = [heads] + [[cell.text for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (
            value.rjust(width) if column.right else value.ljust(width)
            for value, width, column in zip(line, widths, columns, strict=True)
        )
        print("  ".join(cells).rstrip())


def _visible_columns(
    columns: Sequence[Column[Any]],
    rows: Sequence[Sequence[Cell]],
    widths: Sequence[int],
    width: int,
) -> list[int]:
    """Leave out columns without a value, and extra ones that have no room."""
    used = [
        i for i in range(len(columns)) if not rows or any(row[i].text != NOTHING for row in rows)
    ]
    for i in reversed(used[:]):
        if columns[i].extra and sum(widths[k] + 2 for k in used) - 2 > width:
            used.remove(i)
    return used


def _cell(value: Value) -> Cell:
    if isinstance(value, Cell):
        return Cell(_one_line(value.text) or NOTHING, value.style)
    if value is None or value == "":
        return Cell(NOTHING, "dim")
    return Cell(_one_line(str(value)))


def _one_line(text: str) -> str:
    """Return a text of several lines as one; ends of lines are not worth to be spelled out."""
    lines = (line.strip() for line in text.splitlines()) if "\n" in text else (text,)
    return printable(" ".join(line for line in lines if line))


# -- texts, times and values as people read them


def printable(text: str) -> str:
    """Return text that cannot move the cursor: names and causes come from elsewhere."""
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or unicodedata.category(c) in ("Zs", "Co", "Cn")
        else c.encode("unicode_escape").decode()
        for c in text
    )


def utc_time(ms: int) -> str:
    """Return a time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def local_time(ms: int, now_ms: int) -> str:
    """Return a time where the user is: to the second if it was today, else with its day."""
    try:
        then = datetime.fromtimestamp(ms / 1000).astimezone()
        today = datetime.fromtimestamp(now_ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    same_day = then.date() == today.date()
    return then.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M")


def time_ago(ms: int, now_ms: int) -> str:
    """Return how long ago something was; clocks of machines differ, so it is never negative."""
    age = now_ms - ms
    return "now" if age < 1_000 else f"{format_age(age)} ago"


def value_text(value: Any) -> str | None:
    """Return a value as text: text as it is, everything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    import msgspec

    return msgspec.json.encode(value).decode()


def json_value(value: Any) -> Any:
    """Return a value of Spark's in a form that JSON can hold."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if hasattr(value, "asDict"):
        return {name: json_value(part) for name, part in value.asDict(recursive=False).items()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: json_value(part) for key, part in value.items()}
        return [[json_value(key), json_value(part)] for key, part in value.items()]
    if isinstance(value, Sequence):
        return [json_value(part) for part in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
