"""What the pages stand on, and how they are written: the database they read, and their templates."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import Connection

from controller.bootstrap import Application
from controller.domain.shown import duration, printable
from controller.store.postgres.snapshots import snapshot
from controller.tasks.access import cleave_at

HERE = Path(__file__).parent
MOST_ROWS = 200
"""Rows of one table on a page; a list that has more says so."""
PATIENCE_SECONDS = 8.0
"""For each statement: a page that is asked for every few seconds may not keep a database busy for longer."""


class Desk:
    """The application that the pages read with. One is kept, for as long as `where` names the same database."""

    def __init__(
        self, where: Callable[[], Mapping[str, Any]], *, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """`where` gives the arguments of `cleave_at`; it is asked for each page, and raises where it cannot tell."""
        self._where, self._patience_seconds = where, patience_seconds
        self._kept: tuple[Mapping[str, Any], Application] | None = None
        self._open = ExitStack()
        self._guard = threading.Lock()

    def application(self) -> Application:
        """The one that is kept. Pages read with it in snapshots (`reading`), and perform dry runs of forms with it."""
        where = self._where()
        with self._guard:
            if self._kept is None or self._kept[0] != where:
                self._open.close()
                self._kept = where, self._open.enter_context(cleave_at(**where))
            return self._kept[1]

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One snapshot of the database, in which nothing can be changed. Raises StoreUnavailable for what takes too long."""
        with snapshot(self.application().store, statement_seconds=self._patience_seconds) as tx:
            yield tx

    def close(self) -> None:
        """Give back every connection."""
        with self._guard:
            self._kept = None
            self._open.close()


def render(request: Request, template: str, **context: Any) -> HTMLResponse:
    """A page from its template. Links start at `root`, where the pages are mounted."""
    root = str(request.scope.get("root_path", "")).rstrip("/")
    page = _templates.get_template(template).render(
        root=root,
        airflow=root.rpartition("/")[0],
        most=MOST_ROWS,
        query=dict(request.query_params),
        **context,
    )
    return HTMLResponse(page, headers={"Cache-Control": "no-store"})


def _rate(value: float | None, unit: str = "") -> str:
    """Three digits and a prefix: 12.3 k msg/s."""
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
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _ago(at: datetime | None) -> str:
    return "" if at is None else f"{duration(max((datetime.now(UTC) - at).total_seconds(), 0.0))} ago"


def _words(value: object) -> str:
    """A cell of a table: lists with commas, pairs as pairs, nothing for nothing."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return _when(value)
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple | set):
        return ", ".join(map(_words, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_words(one)}" for name, one in value.items())
    return str(value)


def _visible(value: object) -> object:
    """A text of a page with its bidirectional and other invisible characters escaped; HTML that is ready, and other values, as given."""
    return printable(value, lines=True) if type(value) is str else value


def _segment_words(segment: Mapping[str, Any]) -> str:
    return f"{segment['segment_id']} [{segment['hash_range']}]"


@functools.cache
def _styles_of_maps() -> list[str]:
    """Return the ids of the styles that the library of plots adds unless an element has the id. No page has maps, and the pages' policy
    forbids styles in elements.
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
    "segment_words": _segment_words,
}
