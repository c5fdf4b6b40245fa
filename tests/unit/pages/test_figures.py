"""The pictures of the pages: what is drawn where, in which colour, and that each axis says what it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.pages import figures
from controller.pages.load_over_time import load_over_time

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def segment(segment_id: int, start: int, end: int, ratio: float | None = None, **more: Any) -> dict[str, Any]:
    """A row as the views have it."""
    return {
        "segment_id": segment_id,
        "range_start": start,
        "range_end": end,
        "hash_range": f"{start:04x}-{end:04x}",
        "hottest_ratio": ratio,
        **more,
    }


EVERY = [
    figures.ring_now([segment(0, 0, 0xFFFF, 0.5)]),
    load_over_time(
        [{"segment_id": 0, "recorded_at": NOW, "rate": 1.0}], {0: NOW}, 50.0, "msg_rate_in", "messages/s"
    ),
    figures.regrets([{"policy": "adaptive", "regret": 1.2}]),
    figures.bundles_by_load(
        [{"lower_bound": 0, "upper_bound": 2**32, "byte_rate": 1.0, "broker": None, "bundle": "all"}]
    ),
]


@pytest.mark.parametrize("figure", EVERY)
def test_each_axis_that_is_seen_has_its_name_and_the_document_is_json(figure: dict[str, Any]) -> None:
    for axis in ("xaxis", "yaxis"):
        shown = figure["layout"][axis]
        assert shown.get("visible") is False or shown["title"]["text"]
    assert json.loads(json.dumps(figure)) == figure


def test_the_strip_has_each_range_at_its_place_with_its_id() -> None:
    [trace] = figures.ring_now([segment(1, 0, 0x3FFF, 2.0), segment(2, 0x4000, 0xFFFF)])["data"]

    assert (trace["base"], trace["x"], trace["text"]) == ([0, 0x4000], [0x4000, 0xC000], ["1", "2"])
    assert trace["customdata"] == [1, 2]
    assert "2.00 of the split threshold" in trace["hovertext"][0]
    assert "load unknown" in trace["hovertext"][1]


def test_colours_go_from_idle_over_the_threshold_to_twice_of_it_and_unknown_has_its_own() -> None:
    rows = [segment(i, i, i, ratio) for i, ratio in enumerate((0.0, 1.0, 2.0, 9.0, None))]
    [trace] = figures.ring_now(rows)["data"]

    idle, threshold, twice, more, unknown = trace["marker"]["color"]
    assert len({idle, threshold, twice, unknown}) == 4
    assert more == twice


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_every_load_has_a_colour(one: float, other: float) -> None:
    [trace] = figures.ring_now([segment(0, 0, 1, one), segment(1, 2, 3, other)])["data"]

    for colour in trace["marker"]["color"]:
        assert len(bytes.fromhex(colour.removeprefix("#"))) == 3
