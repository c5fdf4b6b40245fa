"""Canonical JSON: sorted keys, no spaces, integral numbers as integers. One value has one text.

Stored texts outlive the code that wrote them, so the values that both parts of a cycle's text share are written and read here explicitly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from controller.bundles.domain.load.averages import BundleLoad, TimeAverage
from controller.domain.policy_parameters import write_parameter

RATES: Final = ("msg_rate_in", "msg_rate_out", "byte_rate_in", "byte_rate_out")
"""The rates of a reading or an average, in the order in which they are written."""

UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError)
"""Errors that reading raises for a text that holds something else."""


def canonical_text(document: Mapping[str, Any]) -> str:
    """Return the canonical text of a document. Raises ValueError for a number that JSON cannot hold (NaN or infinity)."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_number(value: float) -> Any:
    """Return an integer if the value is integral and below 2^53, a text such as "NaN" if it is not finite, else the value."""
    return write_parameter(float(value))


def write_load(load: BundleLoad) -> list[Any]:
    """Return both averages as lists of numbers: over the short term, then over the long term."""
    return [_write_average(load.short_term), _write_average(load.long_term)]


def read_load(value: Sequence[Any]) -> BundleLoad:
    """Read the value of `write_load`. Raises an error of UNREADABLE (KeyError, TypeError, ValueError or AttributeError) for another
    value.
    """
    return BundleLoad(*(_read_average(average) for average in value))


def _write_average(average: TimeAverage) -> list[Any]:
    rates = [write_number(getattr(average, name)) for name in RATES]
    return [average.max_samples, average.sample_count, *rates]


def _read_average(value: Sequence[Any]) -> TimeAverage:
    max_samples, count, *rates = value
    return TimeAverage(max_samples, count, *map(float, rates))
