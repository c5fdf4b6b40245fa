"""Output of commands: tables on a terminal, or one JSON document with `--json`."""

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

from controller.domain.formatting import printable
from controller.domain.whole_numbers import plain_number

if TYPE_CHECKING:  # commands that perform no action do not import responses
    from controller.actions.responses import Answer

PIPED_WIDTH = 220
GAP = 2
MOST_LISTED = 20
"""Maximum number of a list's values in a cell."""
LONGEST_WORD = 24
"""A longer word, such as an address, may be broken if its cell has several words."""


def _reader_has_gone() -> NoReturn:
    """Exit without a message or an error, because the reader of the output (head, less) has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


class _Console(Console):
    """A console that escapes control characters in texts. The console's own colours and cursor movements are kept. A reader of the output
    that goes away ends the process without an error.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of the renderable with control characters escaped."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(printable(segment.text, lines=True), segment.style)
            else:
                yield segment

    def on_broken_pipe(self) -> None:
        _reader_has_gone()


# Python has no standard output if the process was started with a closed one; the console then discards what it prints.
_IS_TERMINAL = sys.stdout is not None and sys.stdout.isatty()
_KNOWS_ITS_WIDTH = _IS_TERMINAL or "COLUMNS" in os.environ
console = _Console(highlight=False, width=None if _KNOWS_ITS_WIDTH else PIPED_WIDTH)


def to_json(value: Any) -> Any:
    """Convert a value that json does not know: a datetime to ISO 8601, a finite decimal within 64 bits to a number, any other value to
    text.
    """
    if isinstance(value, Decimal):
        return plain_number(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def emit(as_json: bool, document: Any, table: RenderableType) -> None:
    """Print the document as JSON if `as_json`, otherwise the table."""
    if as_json:
        # JSON in ASCII escapes all control characters except DEL.
        say(json.dumps(document, default=to_json, indent=2, sort_keys=False).replace("\x7f", "\\u007f"))
    else:
        console.print(table)


def say(text: str) -> None:
    """Print a text. Characters that are not printable are escaped, except line ends. If the reader of the output has closed the pipe, the
    process exits with code 0.
    """
    try:
        typer.echo(printable(text, lines=True))
    except BrokenPipeError:
        _reader_has_gone()


def rows_table(
    rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None, title: str | None = None
) -> RenderableType:
    """Return a table of mappings below a title; without rows, the table says so. `columns` None: the keys of the first row. A mapping
    without a column has an empty cell.
    """
    names = list(columns or (rows[0].keys() if rows else ()))
    body = Rows(names, rows) if rows else Text("nothing found")
    return body if title is None else Group(Text(title), body)


def answer_table(answer: Answer, title: str | None) -> RenderableType:
    """Return the rows of an answer below a title, or the title alone without rows, followed by the answer's further tables that have rows.
    Without rows and title, the table says that nothing was found.
    """
    rows = answer.rows()
    first = rows_table(rows, title=title) if rows or title is None else Text(title)
    further = [rows_table(rows, title=title) for title, rows in answer.tables() if rows]
    return Group(first, *further) if further else first


class Rows:
    """A table that fits the terminal. Texts are broken between words; other values are not broken.

    If the table is still too wide, each row becomes a block with one line for each column.
    """

    def __init__(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        self._columns = [_Column(name, [row.get(name) for row in rows]) for name in names]
        self._count = len(rows)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table with the widths of its columns, or one block for each row, with empty lines in between, if the table is wider
        than the terminal.
        """
        room = options.max_width - GAP * (len(self._columns) - 1)
        widths = _shared(room, [(column.least, column.most) for column in self._columns])
        if widths is None:
            for number in range(self._count):
                yield from [Text("")] if number else []
                yield self._block(number)
            return
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False)
        for column, width in zip(self._columns, widths, strict=True):
            side: Literal["right", "left"] = "right" if column.is_numeric else "left"
            # The last column has no gap, so every width is that of the text alone.
            table.add_column(Text(column.title), justify=side, overflow="fold", width=width)
        for cells in zip(*(column.cells for column in self._columns), strict=True):
            table.add_row(*map(Text, cells))  # plain text, because [a000-bfff] is not markup
        yield table

    def _block(self, number: int) -> Table:
        """Return row `number` as a block with a line for each column that is not empty."""
        block = Table(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
        block.add_column(style="bold", no_wrap=True)
        block.add_column(overflow="fold")
        for column in self._columns:
            if column.cells[number]:
                block.add_row(Text(column.title), Text(column.cells[number]))
        return block


class _Column:
    """The cells of one column, with its smallest and largest width."""

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        """Format the values. `title` is the name with spaces for underscores; `least` and `most` are the smallest width, without breaking a
        word, and the largest.
        """
        self.title = name.replace("_", " ")
        self.cells = [cell(value) for value in values]
        present = [value for value in values if value is not None]
        self.is_numeric = bool(present) and all(
            isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in present
        )
        self.most = max(len(self.title), *(len(text) for text in self.cells))
        words = [word for text, value in zip(self.cells, values, strict=True) for word in _words(text, value)]
        self.least = max(*map(len, self.title.split()), *(len(word) for word in words), 1)


def _words(text: str, value: Any) -> list[str]:
    """Return the parts of a cell, as texts, that a column must be wide enough for: the whole text of a datetime or of a single word;
    otherwise each word, of which only the first `LONGEST_WORD` characters.
    """
    if isinstance(value, datetime):
        return [text]
    return [word[:LONGEST_WORD] if " " in text else word for word in text.split(" ")]


def _shared(room: int, bounds: Sequence[tuple[int, int]]) -> list[int] | None:
    """Return a width for each column: its smallest width plus a share of the remaining space, up to its largest width. None if the table
    does not fit.

    `bounds` are the smallest and largest widths; `room` is the width for all columns.
    """
    widths = [least for least, _ in bounds]
    remaining = room - sum(widths)
    if remaining < 0:
        return None
    while remaining > 0 and (wanting := [at for at, (_, widest) in enumerate(bounds) if widths[at] < widest]):
        share = max(remaining // len(wanting), 1)
        for at in wanting[: remaining // share]:
            more = min(share, bounds[at][1] - widths[at])
            widths[at] += more
            remaining -= more
    return widths


def cell(value: Any) -> str:
    """Format one cell: datetimes in UTC, floats and decimals with one decimal place and commas between thousands, integers without a
    change, None as an empty text, true and false as in JSON, and of a list the first `MOST_LISTED` values and the number of the others.
    Control characters are escaped.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()  # the form that `policy set` accepts
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, float | Decimal):
        return f"{value:,.1f}"
    text = _listed(value) if isinstance(value, list | tuple) else str(value)
    return printable(text, lines=True)  # escaped before the widths of columns are measured


def _listed(values: Sequence[Any]) -> str:
    """Return the first `MOST_LISTED` values, separated by commas, and the number of the others."""
    more = [f"{len(values) - MOST_LISTED} more"] if len(values) > MOST_LISTED else []
    return ", ".join([*map(str, values[:MOST_LISTED]), *more])


def created(creates: Iterable[Mapping[str, Any]]) -> str:
    """Format the segments that an operation creates as `id [range]`, separated by commas. A mapping has `segment_id` and `hash_range`."""
    return ", ".join(f"{segment['segment_id']} [{segment['hash_range']}]" for segment in creates)
