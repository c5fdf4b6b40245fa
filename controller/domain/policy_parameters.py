"""Converts parameter values to and from JSON documents. Checks names and types only.

`policy` declares the parameters and defines which values are allowed together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from controller.domain.errors import InvalidPolicy
from controller.domain.formatting import shown
from controller.domain.whole_numbers import LARGEST_FLOAT

ParameterValue = bool | int | float | str

NON_FINITE = ("Infinity", "-Infinity", "NaN")
"""Texts for numbers that JSON cannot write."""


def write_parameter(value: ParameterValue) -> ParameterValue:
    """Return the value in the form that every JSON library reads alike: an integral float between -2^53 and 2^53 as an
    int, a number that is not finite as a text of `NON_FINITE`. Other values are returned unchanged.

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


def read_parameters(
    document: Mapping[str, Any], kinds: Mapping[str, type], subject: str = "auto split/merge"
) -> Iterator[tuple[str, ParameterValue]]:
    """Yield name and value of each parameter that a document sets, in the order of `kinds`, the value converted to
    the type that `kinds` has for the name. A parameter with the value null counts as absent. Bounds are not checked.

    Raises InvalidPolicy, during the iteration, for a document that is not an object, a name that is not in `kinds`, or
    a value that does not fit the type (`misfit`; a float may also be a text of `NON_FINITE`). The message says that
    the `subject` configuration is invalid.
    """
    if not isinstance(document, Mapping):
        raise InvalidPolicy(
            f"Invalid {subject} configuration: {shown(document)} is not a JSON object; give parameters by name"
        )
    for parameter in document:
        if parameter not in kinds:
            raise InvalidPolicy(
                f"Invalid {subject} configuration: {shown(parameter)} cannot be set here; "
                f"the parameters are {', '.join(kinds)}"
            )
    for parameter, kind in kinds.items():
        value = document.get(parameter)
        if value is not None:
            yield parameter, _read(parameter, value, kind, subject)


def misfit(value: object, kind: type) -> str | None:
    """Return None if a parameter of the type `kind` can hold the value, otherwise the words for the values that fit,
    such as `a whole number`. An int fits a float parameter, and an integral float fits an int parameter. An int beyond
    the range of floats fits neither. Never raises.
    """
    if kind in (bool, str):
        return None if isinstance(value, kind) else _EXPECTED[kind]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _EXPECTED[kind]
    if isinstance(value, float):
        return None if kind is float or value.is_integer() else _EXPECTED[kind]
    # PostgreSQL's JSON holds integers of any length, but a parameter must fit into a float.
    return None if abs(value) <= LARGEST_FLOAT else _EXPECTED[kind]


_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _read(parameter: str, value: Any, kind: type, subject: str) -> ParameterValue:
    """Return the value converted to its type; for a float also a text of `NON_FINITE`. Raises InvalidPolicy, which
    names the parameter and the `subject`, for a value of another type.
    """
    if kind is float and isinstance(value, str) and value in NON_FINITE:
        return float(value)
    expected = misfit(value, kind)
    if expected is not None:
        raise InvalidPolicy(f"Invalid {subject} configuration: {parameter} = {shown(value)}; give {expected}")
    converted: ParameterValue = value if kind in (bool, str) else kind(value)
    return converted
