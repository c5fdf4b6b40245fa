"""Lists in pages: each page ends with what to ask for the next one. Rows that come meanwhile move no others to another page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from controller.questions.page_keys import read_keys, write_keys
from controller.store.postgres import inspection

Item = TypeVar("Item")
Row = dict[str, Any]


CURSORS = [write_keys([42]), write_keys(["topic://acme/shop/orders"])]
"""Examples of `next`: of a list of operations, and of one of topics."""


class Page(BaseModel, Generic[Item]):
    """`next` is the `page` to ask for next; null at the end."""

    items: list[Item]
    next: str | None = Field(examples=CURSORS)


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page is asked for: `limit` items at most, after those of the pages before."""

    limit: int
    page: str | None

    def after(self, kinds: Sequence[type]) -> Sequence[Any]:
        """The keys of the last row of the page before, None each at the beginning. Raises InvalidInput for a page that is none."""
        if self.page is None:
            return [None] * len(kinds)
        return read_keys(self.page, kinds)


@dataclass(frozen=True, slots=True)
class Listing:
    """A list that is read in pages. `statement` orders its rows by the columns `keys`, each of the kind that is named, and binds
    `:limit` and each column's value in the last row of the page before: `:after_topic` of a column `topic`, null at the beginning.
    """

    statement: str
    keys: Mapping[str, type]

    def page(
        self, tx: Connection, paging: Paging, /, each: Callable[[Row], Row] = dict, **asked: object
    ) -> dict[str, Any]:
        """The page that is asked for, `each` of its rows as items show it. Raises InvalidInput for a page that is none."""
        after = dict(
            zip([f"after_{key}" for key in self.keys], paging.after([*self.keys.values()]), strict=True)
        )
        # One row more than the page holds tells that there is another page.
        rows = inspection.rows(tx, self.statement, **asked, **after, limit=paging.limit + 1)
        found = cut(rows, paging, [*self.keys])
        return {**found, "items": [each(row) for row in found["items"]]}


def cut(rows: Sequence[Row], paging: Paging, keys: Sequence[str]) -> dict[str, Any]:
    """The page of rows of which one more than the page holds was read, where there are so many."""
    items = rows[: paging.limit]
    is_last = len(rows) <= paging.limit
    return {"items": items, "next": None if is_last else write_keys([items[-1][key] for key in keys])}


async def _paging(
    limit: Annotated[int, Query(ge=1, le=1000, description="Items of a page at most.", examples=[100])] = 50,
    page: Annotated[
        str | None,
        Query(
            max_length=1500,
            description="The `next` of the page before; the first page without.",
            examples=CURSORS,
        ),
    ] = None,
) -> Paging:
    return Paging(limit, page)


Asked = Annotated[Paging, Depends(_paging)]
