"""Replays: a decision of the decision log is made again from its stored input and compared with the stored result.

An evaluation input contains everything that a decision may use, so the same code gives the same result. Another
result means that the rules have changed since (another code version), or that the stored row was changed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from controller.domain.decision import Lane
from controller.domain.errors import CleaveError
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import code_version, decide

Document = Mapping[str, Any]
"""An evaluation as JSON values, as `Evaluation.to_document` returns it."""

UNREADABLE = (
    CleaveError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""Errors of an input that this code cannot read or evaluate."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The stored evaluation and the evaluation that this code makes from the same input. `replayed` and `code_version`
    (the version of the rules of the replay) are None if this code cannot read or evaluate the input; `unreadable` then
    gives the reason.
    """

    stored: Document
    replayed: Document | None
    code_version: str | None
    unreadable: str | None = None

    @property
    def is_same(self) -> bool:
        """True if the two documents are equal to the last digit of every figure, in the same order."""
        return self.replayed is not None and exact(self.stored) == exact(self.replayed)


def replay(situation: str, lanes: Collection[Lane], stored: Document) -> Replay:
    """Decide again from `situation`, the canonical text of an evaluation input, on `lanes`, and return the evaluation
    together with the `stored` one. Never raises: if this code cannot read or evaluate the input, `unreadable` of the
    result says why.
    """
    try:
        parsed = EvaluationInput.from_json(situation)
    except UNREADABLE as error:
        return unreadable(stored, error)
    return replay_input(parsed, lanes, stored)


def replay_input(situation: EvaluationInput, lanes: Collection[Lane], stored: Document) -> Replay:
    """Decide again on `lanes`, and return the evaluation together with the `stored` one. Never raises: if this code cannot
    evaluate the input, `unreadable` of the result says why.
    """
    try:
        evaluation = decide(situation, lanes)
    except UNREADABLE as error:
        return unreadable(stored, error)
    return Replay(stored, evaluation.to_document(), code_version(situation.policy))


def unreadable(stored: Document, error: Exception) -> Replay:
    """Return the replay of an input whose reading or evaluation raised `error`."""
    return Replay(stored, None, None, f"{type(error).__name__}: {error}")


def exact(document: Any) -> Any:
    """Return the JSON values with each number as a Decimal, so that equal numbers compare as equal: a `jsonb` column
    returns 1e+20 as an integer, and as a float a number could lose digits. Raises ValueError for NaN and infinities.
    """
    return json.loads(json.dumps(document, allow_nan=False), parse_float=Decimal, parse_int=Decimal)
