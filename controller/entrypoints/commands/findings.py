"""One line of `cleave doctor`'s report, for all its files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `level` is ok, note or wrong."""

    check: str
    level: str
    finding: str


class Note(Exception):
    """Works, but the operator should know."""
