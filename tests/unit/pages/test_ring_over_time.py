"""The ring over time: a segment has the colour that its load had at each time, and the document is bounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.pages import ring_over_time
from controller.pages.figures import UNKNOWN, load_colour

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
IDLE, HOT = load_colour(0.1), load_colour(1.8)


def segment(segment_id: int, created_at: datetime, sealed_at: datetime | None = None) -> dict[str, Any]:
    """A row as `segments_over_time` returns it."""
    return {
        "segment_id": segment_id,
        "range_start": 0,
        "range_end": 0x7FFF,
        "hash_range": "0000-7fff",
        "created_at": created_at,
        "sealed_at": sealed_at,
    }


def load(
    grid: ring_over_time.Grid, at: datetime, ratio: float, segment_id: int = 0, **more: float
) -> dict[str, Any]:
    """The row of the cell that a record falls into."""
    cell = grid.cells(at, at)[0]
    return {"segment_id": segment_id, "cell": cell, "highest": ratio, "last": ratio, **more}


def drawn(figure: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Begin and minutes of each cell, with its colour."""
    cells = figure["data"][0]
    return [
        (
            (datetime.fromisoformat(x) - timedelta(milliseconds=width / 2)).strftime("%H:%M:%S"),
            width / 60_000,
            colour,
        )
        for x, width, colour in zip(cells["x"], cells["width"], cells["marker"]["color"], strict=True)
    ]


def test_a_minute_of_load_colours_its_cell_and_not_the_hours_before_it() -> None:
    rows = [segment(0, NOW - 8 * HOUR)]
    grid = ring_over_time.grid(rows, NOW - 8 * HOUR, NOW, 96)
    loads = [
        load(grid, NOW - 8 * HOUR, 0.1),
        load(grid, NOW - HOUR, 1.8, last=0.1),
    ]

    assert grid.seconds == 300
    assert drawn(ring_over_time.ring_over_time(rows, loads, grid)) == [
        ("04:00:00", 420, IDLE),
        ("11:00:00", 5, HOT),
        ("11:05:00", 55, IDLE),
    ]


def test_a_load_holds_until_the_next_record_and_counts_in_the_cell_in_which_it_ends() -> None:
    rows = [segment(0, NOW - 8 * HOUR)]
    grid = ring_over_time.grid(rows, NOW - 8 * HOUR, NOW, 96)
    loads = [load(grid, NOW - 9 * HOUR, 1.8), load(grid, NOW - HOUR, 0.1)]

    assert drawn(ring_over_time.ring_over_time(rows, loads, grid)) == [
        ("04:00:00", 425, HOT),
        ("11:05:00", 55, IDLE),
    ]


def test_a_segment_is_grey_until_its_load_is_known() -> None:
    rows = [segment(0, NOW - 8 * HOUR)]
    grid = ring_over_time.grid(rows, NOW - 8 * HOUR, NOW, 96)

    figure = ring_over_time.ring_over_time(rows, [load(grid, NOW - HOUR, 0.1)], grid)

    assert drawn(figure) == [("04:00:00", 420, UNKNOWN), ("11:00:00", 60, IDLE)]
    assert "load unknown" in figure["data"][0]["hovertext"][0]
    assert "11:00:00 to 12:00:00" in figure["data"][0]["hovertext"][1]


def test_cells_end_with_their_segment_and_its_border_is_its_whole_lifetime() -> None:
    rows = [
        segment(0, NOW - 2 * HOUR, sealed_at=NOW - timedelta(minutes=61)),
        segment(1, NOW - timedelta(minutes=61)),
    ]
    grid = ring_over_time.grid(rows, NOW - 8 * HOUR, NOW, 96)
    loads = [load(grid, NOW - 2 * HOUR, 0.1), load(grid, NOW - HOUR, 1.8, segment_id=1)]

    figure = ring_over_time.ring_over_time(rows, loads, grid)

    cells, frames = figure["data"]
    assert [(begins, minutes) for begins, minutes, _ in drawn(figure)] == [
        ("10:00:00", 59),
        ("10:59:00", 1),
        ("11:00:00", 60),
    ]
    assert cells["customdata"] == [0, 1, 1], "a click on a cell shows its segment"
    assert (frames["text"], frames["width"]) == (["0", "1"], [59 * 60_000, 61 * 60_000])
    assert frames["hoverinfo"] == "skip", "or the border would hide the cells from the mouse"


@pytest.mark.parametrize("days", [1 / 24, 1, 30])
@pytest.mark.parametrize("number", [1, 50, 3_000])
def test_neither_long_spans_nor_many_segments_exceed_the_limit(days: float, number: int) -> None:
    since = NOW - timedelta(days=days)
    rows = [segment(i, since) for i in range(number)]
    grid = ring_over_time.grid(rows, since, NOW, 4_000)
    cells = {one["segment_id"]: grid.cells(since, NOW) for one in rows}
    loads = [
        {"segment_id": i, "cell": cell, "highest": cell % 7, "last": cell % 5}
        for i in cells
        for cell in cells[i]
    ]

    figure = ring_over_time.ring_over_time(rows, loads, grid)

    assert number <= len(figure["data"][0]["x"]) <= max(4_000, 2 * number)
    assert json.loads(json.dumps(figure)) == figure
    assert all(figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis"))


def test_cells_stay_where_they_are_when_the_span_moves_on() -> None:
    rows = [segment(0, NOW - 8 * HOUR)]
    first, later = (
        ring_over_time.grid(rows, now - HOUR, now, 4_000) for now in (NOW, NOW + timedelta(seconds=5))
    )

    assert {first.begin(cell) for cell in first.cells(NOW - HOUR / 2, NOW)} == {
        later.begin(cell) for cell in later.cells(NOW - HOUR / 2, NOW)
    }


def test_a_topic_without_segments_in_the_span_has_an_empty_picture() -> None:
    assert drawn(ring_over_time.ring_over_time([], [], ring_over_time.grid([], NOW - HOUR, NOW, 96))) == []
