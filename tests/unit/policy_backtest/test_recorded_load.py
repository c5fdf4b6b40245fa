"""Recorded rates on a grid of steps: sums of segments, what was known at each step's end, and how it lay on the ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from controller.domain.policy import AutoScalePolicy
from spark_jobs.recorded_load import RATE_COLUMNS, Recording, series_of

START = 1_763_812_800_000
MINUTE = 60_000
HALVES = {0: "0000-7fff", 1: "8000-ffff"}


def recording(steps: int, **changes: Any) -> Recording:
    return Recording(7, "orders", START, START + steps * MINUTE, AutoScalePolicy().to_document(), **changes)


def rows(*given: tuple[float, int, float]) -> pa.Table:
    """Minutes after the start at which a window ended, segment, messages/s in."""
    return pa.Table.from_pylist(
        [
            {
                "key": 7,
                "window_end_ms": START + round(minutes * MINUTE),
                "segment_id": segment_id,
                "msg_rate_in": rate,
                "byte_rate_in": rate * 10,
                "msg_rate_out": 0.0,
                "byte_rate_out": 0.0,
            }
            for minutes, segment_id, rate in given
        ],
        RATE_COLUMNS,
    )


def loads(steps: int, *given: tuple[float, int, float]) -> list[float | None]:
    series = series_of(recording(steps), rows(*given))
    return [None if np.isnan(rate) else rate for rate in series.rates[:, 0].tolist()]


@pytest.mark.parametrize(
    ("steps", "given", "expected"),
    [
        (2, [(1, 0, 10.0), (1, 1, 5.0), (2, 0, 20.0), (2, 1, 7.0)], [15.0, 27.0]),
        (2, [(2, 1, 7.0), (1, 0, 10.0), (2, 0, 20.0), (1, 1, 5.0)], [15.0, 27.0]),
        # Windows end when a run came: a little late one minute, a little early the next.
        (4, [(0.9, 0, 1.0), (2.1, 0, 2.0), (2.95, 0, 3.0), (4, 0, 4.0)], [1.0, 1.0, 3.0, 4.0]),
        (5, [(1, 0, 1.0), (5, 0, 5.0)], [1.0, 1.0, None, None, 5.0]),
        (2, [(2, 0, 1.0)], [None, 1.0]),
        (1, [(1, 0, 1.0), (2, 0, 2.0)], [1.0]),
        (1, [(1, 0, float("nan")), (1, 1, 5.0)], [5.0]),
        (1, [(1, 0, -3.0), (1, 1, float("inf"))], [0.0]),
    ],
    ids=[
        "sum of the segments",
        "rows in any order",
        "what was known at its end and nothing later",
        "silence of more than a step is unmeasured",
        "so is what came before the first window",
        "windows beyond the span do not count",
        "a rate that was never measured",
        "rates that are negative or infinite",
    ],
)
def test_a_steps_load_is_what_the_last_window_measured_by_its_end(
    steps: int, given: list[tuple[float, int, float]], expected: list[float | None]
) -> None:
    assert loads(steps, *given) == expected


def test_the_load_lies_where_the_segments_lie() -> None:
    series = series_of(
        recording(3, ranges=HALVES), rows((1, 0, 30.0), (1, 1, 10.0), (3, 0, 0.0), (3, 1, 0.0))
    )

    assert series.shares is not None
    assert series.shares.tolist() == [[0.75, 0.25], [0.75, 0.25], [0.5, 0.5]]


def test_a_segment_that_was_split_on_the_way_lies_on_both_sides() -> None:
    ranges = {0: "0000-ffff", 1: "0000-3fff", 2: "4000-ffff"}
    series = series_of(recording(2, ranges=ranges), rows((1, 0, 4.0), (2, 1, 9.0), (2, 2, 3.0)))

    assert series.shares is not None
    assert series.shares.tolist() == [[0.25] * 4, pytest.approx([0.75, *[1 / 12] * 3])]


def test_a_load_of_one_segment_is_even() -> None:
    assert series_of(recording(1, ranges={0: "0000-ffff"}), rows((1, 0, 4.0))).shares is None


def test_a_narrow_segments_load_is_spread_over_its_part_of_the_ring() -> None:
    ranges = {0: "0000-0000", 1: "0001-ffff"}
    series = series_of(recording(1, ranges=ranges), rows((1, 0, 50.0), (1, 1, 50.0)))

    assert series.shares is not None
    assert series.shares.shape == (1, 256)
    assert series.shares[0, 0] == pytest.approx(0.5 + 0.5 * 255 / 65_535)
    assert series.shares.sum() == pytest.approx(1.0)


def test_a_recording_goes_to_another_process_as_text() -> None:
    one = recording(3, ranges=HALVES, segments=2)

    assert Recording.from_json(one.to_json()) == one
    assert (one.topic_id, recording(1).steps) == (7, 1)
