"""Reads whole numbers from text and from JSON, which may also contain fractions, infinities and numbers of any length.
Defines the largest numbers.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown

MOST = 2**63 - 1
"""The largest 64-bit integer, of Java and of PostgreSQL."""

LARGEST_FLOAT = sys.float_info.max
"""The largest 64-bit floating-point number; an integer of Python may be larger."""


def whole(value: Any, name: str, least: int = 0, most: int = MOST) -> int:
    """Return `value` unchanged. Raises InvalidInput, which names the field `name`, unless it is a whole number (not
    a boolean) from `least` to `most`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"{name} = {shown(value)}; give a whole number from {least} to {most}")
    return value


def from_digits(text: str, most: int = MOST) -> int | None:
    """Return the number that is written in the digits 0 to 9; None for any other text (also with a sign or a space),
    for a number above `most`, and for a text that has more digits than `most`. Never raises.

    `str.isdigit` is True for `²`, which `int` refuses, and `int` refuses more than 4,300 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if number <= most else None


def wholes(values: Any, name: str) -> tuple[int, ...]:
    """Return `values`, a list or a tuple of whole numbers from 0 to `MOST`, as a tuple; empty for None. Raises
    InvalidInput, which names the field `name`, for anything else.
    """
    if values is None:
        return ()
    if not isinstance(values, list | tuple):
        raise InvalidInput(f"{name} = {shown(values)}; give a list of whole numbers")
    return tuple(whole(value, name) for value in values)


def plain_number(value: Any) -> Any:
    """Return a Decimal as an int if it is integral, otherwise as a float; as a str if its absolute value exceeds
    `MOST` or it is not finite. Return a value of another type unchanged.
    """
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite() or abs(value) > MOST:
        return str(value)
    return int(value) if value == value.to_integral_value() else float(value)
