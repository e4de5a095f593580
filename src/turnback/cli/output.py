"""What commands print: tables on a terminal, plain text in a pipe, or one JSON document."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnback.cli import text
from turnback.cli.text import NOTHING, printable

if TYPE_CHECKING:
    from rich.console import Console

_STATES = {
    "RUNNING": "green",
    "COMPLETED": "green",
    "FINISHED": "blue",
    "FAILED": "bold red",
    "LOST": "bold red",
    "UNREADABLE": "bold red",
    "CANCELED": "dim",
    "restored": "green",
    "migrated": "yellow",
    "new": "cyan",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "incompatible": "bold red",
    "unclaimed": "yellow",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
}
_UNDER_WAY = "yellow"
_SHORT = 26
_RECENT_MS = 7 * 86_400_000
_ID = 8


@dataclass(frozen=True)
class Cell:
    """A value in a table.

    Attributes:
        text: What is printed.
        style: How, on a terminal; a style of rich.
    """

    text: str
    style: str = ""


Value = Cell | str | int | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its head.
        right: Whether its values stand on the right, as numbers do.
        extra: Whether it is left out where a terminal is too narrow for all columns.
    """

    name: str
    right: bool = False
    extra: bool = False


class Output:
    """Where a command prints.

    Results go to stdout, everything else to stderr.

    Args:
        json: Whether stdout gets one JSON document and nothing else.
        color: Whether colours may be used where stdout is a terminal.
    """

    def __init__(self, *, json: bool = False, color: bool = True) -> None:
        self.json = json
        self.color = color and not os.environ.get("NO_COLOR")
        self.terminal = sys.stdout.isatty() and not json

    # -- results

    def document(self, value: Any) -> None:
        """Print structs, dataclasses and plain values as JSON."""
        import msgspec

        data = msgspec.json.format(msgspec.json.encode(value), indent=2)
        self._write(data.decode())

    def line(self, line: str = "", style: str = "") -> None:
        """Print a line."""
        if self.terminal and style:
            self._console().print(printable(line), style=style, markup=False, highlight=False)
        else:
            self._write(printable(line))

    def table(self, columns: Sequence[Column | str], rows: Iterable[Sequence[Value]]) -> None:
        """Print rows below a head; in a pipe one line each, nothing cut off.

        On a terminal columns without any value are left out.
        """
        heads = [c if isinstance(c, Column) else Column(c) for c in columns]
        cells = [[_cell(value) for value in row] for row in rows]
        if self.terminal:
            self._rich_table(heads, cells)
        else:
            self._plain_table(heads, cells)

    def fields(self, pairs: Iterable[tuple[str, Value]]) -> None:
        """Print names and values, one pair a line; those without a value are left out."""
        given = [(name, _cell(value)) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in given), default=0)
        for name, cell in given:
            if self.terminal:
                line = self._text("").append(f"{name.ljust(width)}  ", "dim")
                line.append(cell.text, cell.style)
                self._console().print(line, soft_wrap=True)
            else:
                self._write(f"{name.ljust(width)}  {cell.text}")

    def head(self, title: str) -> None:
        """Print the title of what follows, after an empty line."""
        self._write("")
        self.line(title, "bold")

    # -- forms of values

    def time(self, ms: int | None) -> str | None:
        """A time: exact, and if recent how long ago, on a terminal; ISO in a pipe."""
        if ms is None:
            return None
        if not self.terminal:
            return text.iso(ms)
        now = _now_ms()
        exact = text.local(ms, now)
        return f"{exact} ({text.ago(ms, now)})" if now - ms < _RECENT_MS else exact

    def id(self, id: str | None) -> str | None:
        """An identity: on a terminal as much of it as a command needs to find it again."""
        return id[:_ID] if id is not None and self.terminal else id

    def size(self, bytes_: int | None) -> str | None:
        """A size: with a unit on a terminal, in bytes in a pipe."""
        if bytes_ is None:
            return None
        return text.size(bytes_) if self.terminal else str(bytes_)

    def duration(self, ms: float | None) -> str | None:
        """A duration: as people say it on a terminal, in milliseconds in a pipe."""
        if ms is None:
            return None
        return text.duration(round(ms)) if self.terminal else str(round(ms))

    def number(self, number: float | None) -> str | None:
        """A number: in groups of three digits on a terminal."""
        if number is None:
            return None
        return f"{number:,}" if self.terminal else str(number)

    def state(self, state: str) -> Cell:
        """A state or verdict in its colour."""
        return Cell(state, _STATES.get(state, _UNDER_WAY if state.isupper() else ""))

    # -- everything else

    def say(self, message: str, style: str = "") -> None:
        """Print a message to stderr."""
        if style and self.color and sys.stderr.isatty():
            self.stderr().print(printable(message), style=style, markup=False, highlight=False)
        else:
            print(printable(message), file=sys.stderr)

    def hint(self, message: str) -> None:
        """Print advice to stderr, if a person reads it."""
        if sys.stderr.isatty() and not self.json:
            self.say(message, "dim")

    def stderr(self) -> Console:
        """A console of rich on stderr, for progress bars."""
        from rich.console import Console

        return Console(stderr=True, no_color=not self.color, soft_wrap=True)

    def _write(self, line: str) -> None:
        print(line, flush=False)

    def _console(self) -> Console:
        from rich.console import Console

        return Console(no_color=not self.color)

    def _text(self, value: str, style: str = "") -> Any:
        from rich.text import Text

        return Text(value, style=style)

    def _rich_table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
        from rich import box
        from rich.table import Table

        console = self._console()
        widths = [
            max([len(column.name), *(len(row[i].text) for row in rows)])
            for i, column in enumerate(columns)
        ]
        used = _fitting(columns, rows, widths, console.width)
        short = {i for i in used if widths[i] <= _SHORT}
        # Cutting off is worse than folding: values are to be copied.
        fits = sum(widths[i] if i in short else _SHORT for i in used) + 2 * len(used)
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
                no_wrap=i in short and fits <= console.width,
            )
        for row in rows:
            table.add_row(*(self._text(row[i].text, row[i].style) for i in used))
        console.print(table)

    def _plain_table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
        heads = [column.name.upper().replace(" ", "_") for column in columns]
        lines = [heads] + [[cell.text for cell in row] for row in rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        for line in lines:
            cells = (
                value.rjust(width) if column.right else value.ljust(width)
                for value, width, column in zip(line, widths, columns, strict=True)
            )
            self._write("  ".join(cells).rstrip())


def _fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], widths: Sequence[int], width: int
) -> list[int]:
    """Which columns to show: none without a value, and no extra ones that have no room."""
    used = [
        i for i in range(len(columns)) if not rows or any(row[i].text != NOTHING for row in rows)
    ]
    for i in reversed(used[:]):
        if columns[i].extra and sum(widths[k] + 2 for k in used) - 2 > width:
            used.remove(i)
    return used


def _cell(value: Value) -> Cell:
    if isinstance(value, Cell):
        return Cell(printable(value.text) or NOTHING, value.style)
    if value is None or value == "":
        return Cell(NOTHING, "dim")
    return Cell(printable(str(value)))


def _now_ms() -> int:
    from turnback.core.clock import SystemClock

    return SystemClock().now_ms()
