"""Parses durations such as 90min, 12h, 7d and 2w."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown

_DURATION = re.compile(r"([0-9]{1,6})(min|h|d|w)")
_UNITS: Mapping[str, timedelta] = MappingProxyType(
    {
        "min": timedelta(minutes=1),
        "h": timedelta(hours=1),
        "d": timedelta(days=1),
        "w": timedelta(weeks=1),
    }
)


def is_duration(text: str) -> bool:
    """Return True if `parse_duration` accepts the text."""
    return _DURATION.fullmatch(text) is not None


def parse_duration(text: str) -> timedelta:
    """Return the duration that the text names: one to six digits, followed without a space by a unit (min, h, d or
    w), such as `90min`. The result may be 0. Raises InvalidInput for any other text.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{shown(text)} is not a duration; write a number and a unit (90min, 12h, 7d, 2w)")
    return int(match[1]) * _UNITS[match[2]]
