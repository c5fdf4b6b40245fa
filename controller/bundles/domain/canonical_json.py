"""Canonical JSON: sorted keys, no spaces, integral numbers as integers. One value has one text, in any JSON.

The texts outlive the code that wrote them, so what both parts of a cycle's text share is written and read here by hand.
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
"""What reading raises for a text that holds something else."""


def canonical_text(document: Mapping[str, Any]) -> str:
    """The one text of a document. Raises ValueError for a number that JSON cannot hold."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_number(value: float) -> Any:
    """An integer where the value is integral."""
    return write_parameter(float(value))


def write_load(load: BundleLoad) -> list[Any]:
    """Both averages: over the short term, then over the long term."""
    return [_write_average(load.short_term), _write_average(load.long_term)]


def read_load(value: Sequence[Any]) -> BundleLoad:
    """Reads what `write_load` gave."""
    return BundleLoad(*(_read_average(average) for average in value))


def _write_average(average: TimeAverage) -> list[Any]:
    rates = [write_number(getattr(average, name)) for name in RATES]
    return [average.max_samples, average.sample_count, *rates]


def _read_average(value: Sequence[Any]) -> TimeAverage:
    most, count, *rates = value
    return TimeAverage(most, count, *map(float, rates))
