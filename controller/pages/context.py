"""The database that the pages read, and the templates that render them."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import Connection

from controller.bootstrap import Application
from controller.domain.formatting import duration, exact, printable
from controller.store.postgres.snapshots import snapshot
from controller.tasks.application_of_connection import cleave_at

HERE = Path(__file__).parent
MAX_ROWS = 200
"""Maximum number of rows of a table on a page; a longer list says that it is cut."""
PATIENCE_SECONDS = 8.0
"""Time for a statement: a page is reloaded every few seconds and must not load the database for longer."""


class PageContext:
    """The application that the pages read with. It is kept as long as `arguments` returns the same database. Thread-safe.

    A replaced application stays open until the next change, because requests that began before may still use it.
    """

    def __init__(
        self, arguments: Callable[[], Mapping[str, Any]], *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """`arguments` returns the arguments of `cleave_at`. It is called for each page, and raises CleaveError if the connection is
        missing.
        """
        self._where, self._patience_seconds = arguments, patience_seconds
        self._kept: tuple[Mapping[str, Any], Application] | None = None
        self._open, self._replaced = ExitStack(), ExitStack()
        self._guard = threading.Lock()

    def application(self) -> Application:
        """Return the present application. If the arguments have changed, open another one. The replaced one stays open, and the one
        replaced by the change before is closed.

        Pages read with it in snapshots (`reading`) and perform dry runs of forms. The caller does not close it. Raises CleaveError if the
        connection is missing or invalid.
        """
        present = self._where()
        with self._guard:
            if self._kept is None or self._kept[0] != present:
                opened = ExitStack()
                self._kept = present, opened.enter_context(cleave_at(**present))
                self._replaced.close()
                self._open, self._replaced = opened, self._open
            return self._kept[1]

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read-only snapshot of the database. Raises StoreUnavailable if a statement takes too long."""
        with snapshot(self.application().store, statement_seconds=self._patience_seconds) as tx:
            yield tx

    def close(self) -> None:
        """Close all connections."""
        with self._guard:
            self._kept = None
            self._open.close()
            self._replaced.close()


def _reading(request: Request) -> Iterator[Connection]:
    """Yield the snapshot that a page reads. Raises StoreUnavailable if a statement takes too long."""
    context: PageContext = request.app.state.context
    with context.reading() as tx:
        yield tx


Reading = Annotated[Connection, Depends(_reading)]
"""The snapshot that a page reads."""
Text = Annotated[str, Query(max_length=1_000)]
"""A parameter of a page."""
Id = Annotated[int, Query(ge=0, lt=2**63)]
"""An id that a page shows."""


def render(request: Request, template: str, **context: Any) -> HTMLResponse:
    """Return a page rendered from the file `template`, which browsers must not cache. Links start at `root`, the path at which the pages
    are mounted.
    """
    root = str(request.scope.get("root_path", "")).rstrip("/")
    page = _templates.get_template(template).render(
        root=root,
        airflow=root.rpartition("/")[0],
        most=MAX_ROWS,
        query=dict(request.query_params),
        **context,
    )
    return HTMLResponse(page, headers={"Cache-Control": "no-store"})


def _rate(value: float | None, unit: str = "") -> str:
    """Format a rate with up to three digits, a prefix (k, M, G, T) and the unit: 12.3 kB/s. A dash for None."""
    if value is None:
        return "–"
    size, prefix = abs(float(value)), ""
    for letter in ("k", "M", "G", "T"):
        if size < 1000:
            break
        size, prefix = size / 1000, letter
    digits = 0 if size >= 100 or size == int(size) else 1 if size >= 10 else 2
    return f"{'-' if value < 0 else ''}{size:.{digits}f} {prefix}{unit}".strip()


def _when(at: datetime | None) -> str:
    """Format a time in UTC with seconds; an empty text for None."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _ago(at: datetime | None) -> str:
    """Format the time that has passed since `at`, 0 for a time in the future; an empty text for None."""
    return "" if at is None else f"{duration(max((datetime.now(UTC) - at).total_seconds(), 0.0))} ago"


def _words(value: object) -> str:
    """Format a cell: lists with commas, pairs as `key=value`, times as text, floats with at most three decimals, None as an empty text."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return _when(value)
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple | set):
        return ", ".join(map(_words, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_words(item)}" for name, item in value.items())
    return str(value)


def _visible(value: object) -> object:
    """Escape bidirectional and other invisible characters of a text. Markup and values of other types are returned unchanged."""
    return printable(value, lines=True) if type(value) is str else value


def _segment_words(segment: Mapping[str, Any]) -> str:
    """Format the id and the range of a segment."""
    return f"{segment['segment_id']} [{segment['hash_range']}]"


@functools.cache
def _styles_of_maps() -> list[str]:
    """Return the ids of the styles for maps that plotly adds unless an element with the id exists. No page has maps, and the content security
    policy forbids inline styles.
    """
    from plotly.offline import get_plotlyjs

    return re.findall(r'getElementById\("([0-9a-f]{64})"\)', get_plotlyjs())


_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    finalize=_visible,
    undefined=StrictUndefined,
    trim_blocks=True,
)
_templates.globals["styles_of_maps"] = _styles_of_maps
_templates.filters |= {
    "rate": _rate,
    "when": _when,
    "ago": _ago,
    "words": _words,
    "exact": exact,
    "segment_words": _segment_words,
}
