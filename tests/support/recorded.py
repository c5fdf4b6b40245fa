"""Rates as the aggregation stores them: a history written window by window."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from controller.landing.file_names import day_directory, format_tick
from controller.landing.history import RateHistory
from controller.landing.schemas import RATE_SCHEMA
from tests.support.reports import milliseconds


def keep_rates(
    history: RateHistory, window_end_ms: int, rates: Mapping[tuple[int, int], float | Sequence[float]]
) -> None:
    """Store one window's rates by topic and segment: messages/s in, or all four metrics."""
    scratch = history.scratch(f"run-{window_end_ms}")
    scratch.write("rates", _table(window_end_ms, rates))
    history.publish(scratch, window_end_ms)
    scratch.discard()


def keep_series(history: Path, windows: Mapping[int, Mapping[tuple[int, int], float]]) -> None:
    """Store many windows at once, by their ends: files with their final names, as `publish` leaves them."""
    for window_end_ms, rates in windows.items():
        table = _table(window_end_ms, rates)
        directory = history / day_directory(window_end_ms) / f"window_end={format_tick(window_end_ms)}"
        directory.mkdir(parents=True)
        pq.write_table(table, directory / "series-part-0.parquet")


def keep_days(history: Path, days: int, topics: Sequence[int] = (1,)) -> None:
    """Store days of load of these topics until now; each day goes from idle to several segments' worth, on segments 0 and 1."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    segments = [(topic, segment) for topic in topics for segment in (0, 1)]
    windows = {}
    for minute in range(0, days * 1_440, 2):
        rate = max(300.0, 20_000.0 * math.sin(minute / 1_440 * 2 * math.pi))
        windows[milliseconds(now - timedelta(minutes=minute))] = dict.fromkeys(segments, rate)
    keep_series(history, windows)


def _table(window_end_ms: int, rates: Mapping[tuple[int, int], float | Sequence[float]]) -> pa.Table:
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
    return pa.Table.from_pylist(rows, RATE_SCHEMA)
