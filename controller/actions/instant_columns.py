"""Decides which columns of a view's row are instants, and reads their text: over HTTP a row has text where the
database has datetimes. Columns named `..._at`, `..._since` or `..._until`, and a few others, are instants.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator

_NAMES = frozenset({"at", "since", "until", "deadline", "not_before"})
_ENDINGS = ("_at", "_since", "_until")


def read_instants(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the row in which the text of each instant is parsed: of the columns in `_NAMES`, and of those
    whose names end in `_ENDINGS`. Raises ValueError for a text that is not in ISO 8601.
    """
    return {
        name: datetime.fromisoformat(value)
        if isinstance(value, str) and (name.endswith(_ENDINGS) or name in _NAMES)
        else value
        for name, value in row.items()
    }


InstantRow = Annotated[dict[str, Any], AfterValidator(read_instants)]
"""A row of a view. Over HTTP its instants are text."""
