"""What a person or a program reads: tables on a terminal, one JSON document with `--json`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from controller.domain.shown import printable
from controller.domain.whole_numbers import plain_number

if TYPE_CHECKING:  # commands that perform no action do not load responses
    from controller.actions.responses import Answer

PIPED_WIDTH = 220
GAP = 2
MOST_LISTED = 20
"""Values of a list that a cell shows."""
LONGEST_WORD = 24
"""A longer one within a text, an address for instance, may be broken."""


def _reader_has_gone() -> NoReturn:
    """The reader of our output (head, less) has closed it: leave silently and without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


class PrintableConsole(Console):
    """A console whose texts are escaped where they hold characters that a terminal obeys. Its own colours and cursor moves are not text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of the renderable, all of them printable."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(printable(segment.text, lines=True), segment.style)
            else:
                yield segment


class _Console(PrintableConsole):
    def on_broken_pipe(self) -> None:
        _reader_has_gone()


_KNOWS_ITS_WIDTH = sys.stdout.isatty() or "COLUMNS" in os.environ
console = _Console(highlight=False, width=None if _KNOWS_ITS_WIDTH else PIPED_WIDTH)


def to_json(value: Any) -> Any:
    """Values json does not know: instants become ISO 8601, numbers that 64 bits hold stay numbers, the rest is its text."""
    if isinstance(value, Decimal):
        return plain_number(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def emit(as_json: bool, document: Any, table: RenderableType) -> None:
    """Print the document for programs or the table for people."""
    if as_json:
        # JSON in ASCII escapes all that a terminal would obey, but for DEL.
        say(json.dumps(document, default=to_json, indent=2, sort_keys=False).replace("\x7f", "\\u007f"))
    else:
        console.print(table)


def say(text: str, *, on_error: bool = False) -> None:
    """Print a text, on standard error if `on_error`. Characters that are not printable are escaped; ends of lines stay."""
    try:
        typer.echo(printable(text, lines=True), err=on_error)
    except BrokenPipeError:
        _reader_has_gone()


def rows_table(
    rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None, title: str | None = None
) -> RenderableType:
    """A table of mappings under a line that is its title; where there is nothing it says so."""
    names = list(columns or (rows[0].keys() if rows else ()))
    body = Rows(names, rows) if rows else Text("nothing found")
    return body if title is None else Group(Text(title), body)


def answer_table(answer: Answer, title: str | None) -> RenderableType:
    """Return the rows of an answer under a title, the title alone where there are no rows, and its further tables below."""
    rows = answer.rows()
    first = rows_table(rows, title=title) if rows or title is None else Text(title)
    further = [rows_table(rows, title=title) for title, rows in answer.tables() if rows]
    return Group(first, *further) if further else first


class Rows:
    """A table that fits the terminal: texts are broken between words, and nothing else is broken.

    Where even so it is too wide, each row is a block of lines, one a column.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        self._columns = [_Column(name, [row.get(name) for row in rows]) for name in names]
        self._count = len(rows)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - GAP * (len(self._columns) - 1)
        widths = _shared(room, [(one.least, one.most) for one in self._columns])
        if widths is None:
            for number in range(self._count):
                yield from [Text("")] if number else []
                yield self._block(number)
            return
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False)
        for column, width in zip(self._columns, widths, strict=True):
            side: Literal["right", "left"] = "right" if column.is_numeric else "left"
            # The last column's gap is not printed, so every width is that of the text alone.
            table.add_column(Text(column.title), justify=side, overflow="fold", width=width)
        for cells in zip(*(column.cells for column in self._columns), strict=True):
            table.add_row(*map(Text, cells))  # plain: [a000-bfff] is no markup
        yield table

    def _block(self, number: int) -> Table:
        block = Table(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
        block.add_column(style="bold", no_wrap=True)
        block.add_column(overflow="fold")
        for column in self._columns:
            if column.cells[number]:
                block.add_row(Text(column.title), Text(column.cells[number]))
        return block


class _Column:
    """One column's cells, and how narrow and how wide it may be."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.title = name.replace("_", " ")
        self.cells = [cell(value) for value in values]
        held = [value for value in values if value is not None]
        self.is_numeric = bool(held) and all(
            isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in held
        )
        self.most = max(len(self.title), *(len(text) for text in self.cells))
        words = [word for text, value in zip(self.cells, values, strict=True) for word in _words(text, value)]
        self.least = max(*map(len, self.title.split()), *(len(word) for word in words), 1)


def _words(text: str, value: Any) -> list[str]:
    """What must not be broken: an instant as a whole, of a text each word, but for one of no end."""
    if isinstance(value, datetime):
        return [text]
    return [word[:LONGEST_WORD] if " " in text else word for word in text.split(" ")]


def _shared(room: int, bounds: Sequence[tuple[int, int]]) -> list[int] | None:
    """A width for each column: its least, and what is left over goes to those that want more. None: no room."""
    widths = [least for least, _ in bounds]
    left = room - sum(widths)
    if left < 0:
        return None
    while left > 0 and (wanting := [at for at, (_, most) in enumerate(bounds) if widths[at] < most]):
        share = max(left // len(wanting), 1)
        for at in wanting[: left // share]:
            more = min(share, bounds[at][1] - widths[at])
            widths[at] += more
            left -= more
    return widths


def cell(value: Any) -> str:
    """One cell: short instants, short numbers, nothing for None, truth as JSON writes it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()  # what `policy set` reads
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, float | Decimal):
        return f"{value:,.1f}"
    text = _listed(value) if isinstance(value, list | tuple) else str(value)
    return printable(text, lines=True)  # escaped before the widths of columns are measured


def _listed(values: Sequence[Any]) -> str:
    more = [f"{len(values) - MOST_LISTED} more"] if len(values) > MOST_LISTED else []
    return ", ".join([*map(str, values[:MOST_LISTED]), *more])


def created(creates: Iterable[Mapping[str, Any]]) -> str:
    """Segments that an operation makes, for a cell of a table."""
    return ", ".join(f"{one['segment_id']} [{one['hash_range']}]" for one in creates)
