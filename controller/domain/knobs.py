"""Knob values to and from JSON documents: names and types are checked here, and nothing about what values mean.

`policy` declares the knobs and says which values are allowed together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from controller.domain.errors import InvalidPolicy

KnobValue = bool | int | float | str

_NON_FINITE = ("Infinity", "-Infinity", "NaN")


def write_knob(value: KnobValue) -> KnobValue:
    """A value that is the same in any JSON: integral floats as integers, the non-finite as text.

    JSON has no infinity; PostgreSQL's `float8` reads the same texts as Python.
    """
    if isinstance(value, float):
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        if math.isnan(value):
            return "NaN"
        if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value


def read_knobs(
    document: Mapping[str, Any], kinds: Mapping[str, type], subject: str = "auto split/merge"
) -> Iterator[tuple[str, KnobValue]]:
    """The knobs a document sets, in the order of `kinds`; null is the same as absent.

    Raises InvalidPolicy, saying `subject`, for a name that is not in `kinds` or a value of another type.
    """
    for knob in document:
        if knob not in kinds:
            raise InvalidPolicy(
                f"Invalid {subject} configuration: {knob!r} cannot be set here; "
                f"the knobs are {', '.join(kinds)}"
            )
    for knob, kind in kinds.items():
        value = document.get(knob)
        if value is not None:
            yield knob, _read(knob, value, kind, subject)


def _read(knob: str, value: Any, kind: type, subject: str) -> KnobValue:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and (is_number or value in _NON_FINITE):
        return float(value)
    if kind is int and is_number and value == value // 1 and math.isfinite(value):
        return int(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
    raise InvalidPolicy(f"Invalid {subject} configuration: {knob} = {value!r}; give {wanted}")
