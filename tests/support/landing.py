"""Counter samples as a collector lands them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

import pyarrow as pa

from controller.landing.area import LandingArea
from controller.landing.schemas import SAMPLE_SCHEMA

_AGO_SECONDS = (30, 5)


def land_rates(url: str, topic_id: int, rates: Mapping[int, float], *, source: str = "broker-1") -> None:
    """Two samples of each segment, half a minute and a few seconds old, whose counters grew at that rate.

    Messages per second in and out; a hundred bytes each.
    """
    now_ms = time.time_ns() // 1_000_000
    area = LandingArea(url)
    for ago_seconds in _AGO_SECONDS:
        instant_ms, age_seconds = now_ms - ago_seconds * 1000, _AGO_SECONDS[0] - ago_seconds
        rows = [
            {
                "topic_id": topic_id,
                "segment_id": segment_id,
                "backing_topic": f"log-of-{segment_id}",
                "source": source,
                "instant": datetime.fromtimestamp(instant_ms / 1000, UTC),
                "msg_in": int(rate * age_seconds),
                "byte_in": int(rate * age_seconds) * 100,
                "msg_out": int(rate * age_seconds),
                "byte_out": int(rate * age_seconds) * 100,
            }
            for segment_id, rate in rates.items()
        ]
        area.append(instant_ms, source, pa.Table.from_pylist(rows, SAMPLE_SCHEMA))
