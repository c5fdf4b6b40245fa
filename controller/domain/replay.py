"""Replays: a decision of the ledger is made again from its own text, and compared with what was stored.

A situation holds everything a decision may look at, so the same code gives the same answer. Another answer means that
the rules have changed since (another code version), or that somebody changed the row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from controller.domain.decision import Lane
from controller.domain.errors import CleaveError
from controller.domain.evaluator import code_version, decide
from controller.domain.situation import Situation

Document = Mapping[str, Any]
"""An evaluation as JSON values, see `Evaluation.to_document`."""

_UNREADABLE = (
    CleaveError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
    AttributeError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class Replay:
    """What was stored, and what the same situation gives now; None where this code cannot read the situation, and
    `unreadable` says why. `code_version` is that of the rules that answered now.
    """

    stored: Document
    replayed: Document | None
    code_version: str | None
    unreadable: str | None = None

    @property
    def is_same(self) -> bool:
        """Whether the two documents are equal to the last digit of every figure, in the same order."""
        return self.replayed is not None and exact(self.stored) == exact(self.replayed)


def replay(situation: str, lanes: Collection[Lane], stored: Document) -> Replay:
    """Decide again on the situation's canonical text, with the lanes that were asked then. Never raises."""
    try:
        read = Situation.from_json(situation)
        evaluation = decide(read, lanes)
    except _UNREADABLE as error:
        return Replay(stored, None, None, f"{type(error).__name__}: {error}")
    return Replay(stored, evaluation.to_document(), code_version(read.policy))


def exact(document: Any) -> Any:
    """JSON values to compare by: what was kept as `jsonb` has its numbers as decimals, so 1e+20 reads there as the
    integer it is, and no digit may be lost to a float.
    """
    return json.loads(json.dumps(document, allow_nan=False), parse_float=Decimal, parse_int=Decimal)
