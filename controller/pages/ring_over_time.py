"""The ring over time: a rectangle for each segment, its range by its lifetime. Its cells of time have the colour of their load.

Pure: the functions turn rows of schema `inspect` into a document that plotly draws. The cells of all segments lie on one grid of time,
which is coarser for longer spans and for more segments, so the size of the document is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from math import ceil, floor
from operator import attrgetter

from controller.pages.figures import BORDER, HASHES, Figure, Row, about, load_colour

MOST_SEGMENTS = 3_000
"""Maximum number of segments in the ring over time, the newest; a browser can draw as many at once."""
MOST_CELLS = 4_000
"""Maximum number of cells of the ring over time, unless there are more segments; longer spans and more segments have longer cells."""
MOST_COLUMNS = 96
"""Maximum number of cells of one segment; a cell then has about 6 pixels on a page of common width."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells of equal length from `since` to `until`, counted from the Unix epoch, so that they stay when the span moves on."""

    since: datetime
    until: datetime
    seconds: float

    def cells(self, begins: datetime, ends: datetime) -> range:
        """Return the numbers of the cells that the time from `begins` to `ends` overlaps; at least one."""
        first = floor(begins.timestamp() / self.seconds)
        return range(first, max(ceil(ends.timestamp() / self.seconds), first + 1))

    def begin(self, cell: int) -> datetime:
        """Return the time at which the cell begins."""
        return datetime.fromtimestamp(cell * self.seconds, UTC)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A segment from `begins` to `ends`. `ratio`: its highest rate ÷ threshold in that time; None if it is unknown."""

    segment: Row
    begins: datetime
    ends: datetime
    ratio: float | None


def grid(segments: Sequence[Row], since: datetime, now: datetime, limit: int) -> Grid:
    """Return the finest grid, of those with MOST_COLUMNS columns, half as many, and so on, on which the segments have at most `limit`
    cells; with one column if they have more.
    """
    span = max((now - since).total_seconds(), 1.0)
    columns = MOST_COLUMNS
    while columns > 1:
        candidate = Grid(since, now, span / columns)
        if sum(len(candidate.cells(*_life(segment, candidate))) for segment in segments) <= limit:
            return candidate
        columns //= 2
    return Grid(since, now, span)


def ring_over_time(segments: Sequence[Row], loads: Iterable[Row], grid: Grid) -> Figure:
    """Return a figure of the segments, and in each the loads of its cells.

    `loads` has the columns segment_id, cell (its number in the grid), highest and last (load ÷ split threshold; None if unknown), in the
    order of segment and cell. A load holds until the next one.
    """
    loads_by_id = {key: list(rows) for key, rows in groupby(loads, key=lambda load: load["segment_id"])}
    tiles = {
        segment["segment_id"]: list(_tiles(segment, loads_by_id.get(segment["segment_id"], []), grid))
        for segment in segments
    }
    return {
        "data": [
            _cells([tile for of_segment in tiles.values() for tile in of_segment]),
            _frames(segments, tiles, grid),
        ],
        "layout": {
            "height": 420,
            "margin": {"l": 70, "r": 20, "t": 10, "b": 45},
            "barmode": "overlay",
            "xaxis": {"type": "date", "title": {"text": "time (UTC)"}},
            "yaxis": HASHES,
            "showlegend": False,
        },
    }


def _life(segment: Row, grid: Grid) -> tuple[datetime, datetime]:
    """Return the part of the segment's lifetime that is drawn: from `since` on, and for an active segment up to `until`."""
    begins = max(segment["created_at"], grid.since)
    return begins, max(segment["sealed_at"] or grid.until, begins)


def _tiles(segment: Row, loads: Sequence[Row], grid: Grid) -> Iterator[_Tile]:
    """Yield the rectangles of a segment: its cells, of which neighbours with the same load are joined."""
    begins, ends = _life(segment, grid)
    cells = [
        _Tile(segment, max(grid.begin(cell), begins), min(grid.begin(cell + 1), ends), ratio)
        for cell, ratio in _ratios(loads, grid.cells(begins, ends))
    ]
    for ratio, neighbours in groupby(cells, key=attrgetter("ratio")):
        first, *rest = neighbours
        yield _Tile(segment, first.begins, rest[-1].ends if rest else first.ends, ratio)


def _ratios(loads: Sequence[Row], cells: range) -> Iterator[tuple[int, float | None]]:
    """Yield each cell with its load: the highest of its records and of the record that holds when the cell begins. None if neither
    is known.
    """
    highest = {load["cell"]: load["highest"] for load in loads}
    last = {load["cell"]: load["last"] for load in loads}
    before = bisect_right(loads, cells[0] - 1, key=lambda load: int(load["cell"]))
    current = loads[before - 1]["last"] if before else None
    for cell in cells:
        yield cell, max((ratio for ratio in (current, highest.get(cell)) if ratio is not None), default=None)
        current = last.get(cell, current)


def _cells(tiles: Sequence[_Tile]) -> Figure:
    """Return the cells as bars without a border; the mouse finds a cell, and a click its segment."""
    return {
        **_bars([tile.segment for tile in tiles], [(tile.begins, tile.ends) for tile in tiles]),
        "marker": {"color": [load_colour(tile.ratio) for tile in tiles], "line": {"width": 0}},
        "hovertext": [f"{about(tile.segment, tile.ratio)}<br>{_span(tile)}" for tile in tiles],
        "hoverinfo": "text",
    }


def _frames(segments: Sequence[Row], tiles: dict[int, list[_Tile]], grid: Grid) -> Figure:
    """Return bars with the border and the id of each segment, which lie above its cells, and which the mouse does not find. `tiles` are
    keyed by segment id.
    """
    return {
        **_bars(segments, [_life(segment, grid) for segment in segments]),
        "marker": {"color": "rgba(0, 0, 0, 0)", "line": {"color": BORDER, "width": 1}},
        "text": [str(segment["segment_id"]) for segment in segments],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": "white", "shadow": "0 0 3px black, 0 0 3px black"},
        "textangle": 0,
        "hovertext": [about(segment, _peak(tiles[segment["segment_id"]])) for segment in segments],
        "hoverinfo": "skip",
    }


def _bars(segments: Sequence[Row], spans: Sequence[tuple[datetime, datetime]]) -> Figure:
    """Return bars that are as high as the segments' ranges and as wide as the spans, of which each segment has one; at least 1 ms wide."""
    return {
        "type": "bar",
        "base": [segment["range_start"] for segment in segments],
        "y": [segment["range_end"] - segment["range_start"] + 1 for segment in segments],
        "x": [(begins + (ends - begins) / 2).isoformat() for begins, ends in spans],
        "width": [max((ends - begins) / timedelta(milliseconds=1), 1.0) for begins, ends in spans],
        "customdata": [segment["segment_id"] for segment in segments],
    }


def _peak(tiles: Sequence[_Tile]) -> float | None:
    """Return the highest load of the rectangles; None if none is known."""
    return max((tile.ratio for tile in tiles if tile.ratio is not None), default=None)


def _span(tile: _Tile) -> str:
    """Return when a rectangle begins and ends, with one date if both are on one day."""
    ends = (
        f"{tile.ends:%H:%M:%S}"
        if tile.ends.date() == tile.begins.date()
        else f"{tile.ends:%Y-%m-%d %H:%M:%S}"
    )
    return f"{tile.begins:%Y-%m-%d %H:%M:%S} to {ends}"
