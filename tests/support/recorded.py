"""Rates as the aggregation keeps them: a history written window by window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from controller.landing.history import RateHistory
from controller.landing.schemas import RATE_SCHEMA


def keep_rates(
    history: RateHistory, window_end_ms: int, rates: Mapping[tuple[int, int], float | Sequence[float]]
) -> None:
    """One window's rates by topic and segment: messages/s in, or all four metrics."""
    rows = [
        {
            "topic_id": topic_id,
            "segment_id": segment_id,
            **dict(
                zip(
                    ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out"),
                    (rate, 0.0, 0.0, 0.0) if isinstance(rate, float | int) else rate,
                    strict=True,
                )
            ),
            "observed_at_ms": window_end_ms,
            "covered_ms": 60_000,
            "source": "tests",
        }
        for (topic_id, segment_id), rate in rates.items()
    ]
    scratch = history.scratch(f"run-{window_end_ms}")
    scratch.write("rates", pa.Table.from_pylist(rows, RATE_SCHEMA))
    history.publish(scratch, window_end_ms)
    scratch.discard()
