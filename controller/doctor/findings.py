"""The lines of `cleave doctor`'s report, and functions that all checks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.bootstrap import Application
from controller.domain.errors import CleaveError
from controller.questions.question import Row, read_view


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the name of the check, its level (`ok`, `note` or `wrong`), and the text."""

    check: str
    level: str
    finding: str


class Note(Exception):
    """Raised by a check for something that works but that the operator should know."""


def read(cleave: Application, view: str, *conditions: str, **options: Any) -> list[Row]:
    """Return the rows of a view of schema `inspect` that meet all conditions, in a transaction of its own.
    `conditions` are SQL; the values of their parameters are among the `options` of `read_view`.
    """
    with cleave.store.transaction() as tx:
        return read_view(tx, view, *conditions, **options)


def run_check(name: str, check: Callable[[Application], str], cleave: Application) -> list[Finding]:
    """Run the check and return its result as one finding: `note` if it raises Note, `wrong` if it raises
    CleaveError or OSError. Other errors are raised.
    """
    try:
        return [Finding(name, "ok", check(cleave))]
    except Note as note:
        return [Finding(name, "note", str(note))]
    except (CleaveError, OSError) as error:
        return [Finding(name, "wrong", str(error))]
