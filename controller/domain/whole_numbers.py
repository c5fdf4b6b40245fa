"""Whole numbers out of text, and out of JSON, which holds fractions, infinities and numbers of any length as well; and how
large a number may be at all.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

MOST = 2**63 - 1
"""The largest whole number of Java and of PostgreSQL."""

LARGEST_FLOAT = sys.float_info.max
"""The largest number of 64 bits that is not whole; an integer of Python may be larger."""


def whole(value: Any, name: str, least: int = 0, most: int = MOST) -> int:
    """The number that `name` holds; InvalidInput for anything but a whole one within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"{name} = {shown(value)}; give a whole number from {least} to {most}")
    return value


def from_digits(text: str, most: int = MOST) -> int | None:
    """The number that is written in the digits 0 to 9; None for any other text, and for a number above `most`.

    `str.isdigit` is True for `²`, which `int` refuses, and `int` refuses more than 4,300 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if number <= most else None


def wholes(values: Any, name: str) -> tuple[int, ...]:
    """A list of such; none where it is missing."""
    values = values or ()
    if not isinstance(values, list | tuple):
        raise InvalidInput(f"{name} = {shown(values)}; give a list of whole numbers")
    return tuple(whole(value, name) for value in values)


def plain_number(value: Any) -> Any:
    """Return a decimal number as a whole number or a float; text where no float holds it, and other values as they are."""
    if not isinstance(value, Decimal):
        return value
    if not value.is_finite() or abs(value) > MOST:
        return str(value)
    return int(value) if value == value.to_integral_value() else float(value)
