"""Counter samples as a collector writes them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from controller.landing.area import LandingArea
from controller.landing.schemas import SAMPLE_SCHEMA


def land_rates(
    url: str,
    topic_id: int,
    rates: Mapping[int, float],
    *,
    source: str = "broker-1",
    reader: str = "c",
    ago_seconds: Sequence[int] = (30, 5),
) -> None:
    """Write samples of each segment at these ages in seconds (oldest first), with counters that grew at these rates.

    Rates are messages per second in and out, at a hundred bytes each. A sample with a negative age is for a slow run.
    """
    now_ms = time.time_ns() // 1_000_000
    area = LandingArea(url)
    for ago in ago_seconds:
        instant_ms, age_seconds = now_ms - ago * 1000, ago_seconds[0] - ago
        rows = [
            {
                "topic_id": topic_id,
                "segment_id": segment_id,
                "backing_topic": f"log-of-{segment_id}",
                "source": source,
                "reader": reader,
                "instant": datetime.fromtimestamp(instant_ms / 1000, UTC),
                "msg_in": int(rate * age_seconds),
                "byte_in": int(rate * age_seconds) * 100,
                "msg_out": int(rate * age_seconds),
                "byte_out": int(rate * age_seconds) * 100,
            }
            for segment_id, rate in rates.items()
        ]
        area.append(instant_ms, source, pa.Table.from_pylist(rows, SAMPLE_SCHEMA))
