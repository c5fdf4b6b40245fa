"""Lists in pages: each page ends with what to ask for the next one. Rows that come meanwhile move no others to another page."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown
from controller.domain.whole_numbers import MOST

Item = TypeVar("Item")
Row = dict[str, Any]


class Page(BaseModel, Generic[Item]):
    """`next` is the `page` to ask for next; null at the end."""

    items: list[Item]
    next: str | None = Field(examples=["WzQyXQ"])


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page is asked for. Statements read one row more than the page holds, which tells that there is another."""

    limit: int
    page: str | None

    @property
    def rows(self) -> int:
        """What a statement reads."""
        return self.limit + 1

    def after(self, *kinds: type) -> Sequence[Any]:
        """The keys of the last row that was seen, None each at the beginning. Raises InvalidInput for a page that is none."""
        if self.page is None:
            return [None] * len(kinds)
        try:
            padded = self.page + "=" * (-len(self.page) % 4)
            keys = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
            if not isinstance(keys, list) or len(keys) != len(kinds):
                raise ValueError("other keys")
            return [_read(kind, key) for kind, key in zip(kinds, keys, strict=True)]
        except (ValueError, binascii.Error, RecursionError) as error:
            raise InvalidInput(
                f"page = {shown(self.page)} is no page of this list; give the `next` of the page before"
            ) from error

    def of(self, rows: Sequence[Row], key: Callable[[Row], Sequence[Any]]) -> dict[str, Any]:
        """The page, of one row too many where there are more."""
        shown_rows = list(rows[: self.limit])
        more = len(rows) > self.limit
        return {"items": shown_rows, "next": _written(key(shown_rows[-1])) if more else None}


def _read(kind: type, key: Any) -> Any:
    if kind is datetime and isinstance(key, str):
        found = datetime.fromisoformat(key)
        if found.tzinfo is None:
            raise ValueError("no time zone")
        return found
    if not isinstance(key, kind) or isinstance(key, bool) or (isinstance(key, int) and abs(key) > MOST):
        raise ValueError("another kind of key")
    return key


def _written(keys: Sequence[Any]) -> str:
    text = json.dumps([key.isoformat() if isinstance(key, datetime) else key for key in keys])
    return base64.urlsafe_b64encode(text.encode()).decode("ascii").rstrip("=")


async def _paging(
    limit: Annotated[int, Query(ge=1, le=1000, description="Items of a page at most.")] = 50,
    page: Annotated[
        str | None,
        Query(max_length=1500, description="The `next` of the page before; the first page without."),
    ] = None,
) -> Paging:
    return Paging(limit, page)


Asked = Annotated[Paging, Depends(_paging)]
