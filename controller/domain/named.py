"""Entries of the tables that settings and requests choose from by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from controller.domain.errors import InvalidInput

_Entry = TypeVar("_Entry")


def entry_named(what: str, name: str, table: Mapping[str, _Entry]) -> _Entry:
    """Return the entry of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    if name not in table:
        raise InvalidInput(f"{what} {name!r} is unknown; choose one of {', '.join(table)}")
    return table[name]
