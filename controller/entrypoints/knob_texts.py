"""Knobs as people type them: `max_segments=16 target_use=0.8`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from controller.domain.errors import InvalidInput


def parse_knobs(pairs: Iterable[str]) -> dict[str, Any]:
    """knob=value pairs; values are JSON (true, 16, 0.25) or plain text."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        knob, equals, text = pair.partition("=")
        if not equals or not knob:
            raise InvalidInput(f"{pair!r} is not of the form knob=value, for instance max_segments=16")
        try:
            changes[knob] = json.loads(text, parse_float=_finite)
        except (ValueError, RecursionError):  # plain text, or what no knob holds and its reader refuses
            changes[knob] = text
    return changes


def _finite(text: str) -> float | str:
    """Left as text where no float is as large: it would read as infinity, which somebody would have to mean."""
    number = float(text)
    return number if math.isfinite(number) else text
