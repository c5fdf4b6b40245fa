"""Durations as people write them: 90min, 12h, 7d, 2w."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

_WRITTEN = re.compile(r"([0-9]{1,6})(min|h|d|w)")
_UNITS: Mapping[str, timedelta] = MappingProxyType(
    {
        "min": timedelta(minutes=1),
        "h": timedelta(hours=1),
        "d": timedelta(days=1),
        "w": timedelta(weeks=1),
    }
)


def is_duration(text: str) -> bool:
    """Return True if `parse_duration` reads the text."""
    return _WRITTEN.fullmatch(text) is not None


def parse_duration(text: str) -> timedelta:
    """Return the duration that the text names. Raises InvalidInput."""
    written = _WRITTEN.fullmatch(text)
    if written is None:
        raise InvalidInput(f"{shown(text)} is no duration; write a number and a unit (90min, 12h, 7d, 2w)")
    return int(written[1]) * _UNITS[written[2]]
