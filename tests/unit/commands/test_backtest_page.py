"""The figures of a backtest's report: each axis says what is on it and in which unit, and each policy is told from the others."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from controller.commands import backtest_page
from controller.commands.backtest_page import LABEL_LETTERS
from tests.support.backtest_page import LOADS, LONG, computed


@cache
def _computed() -> Any:
    return computed()


def _pictures() -> dict[str, Any]:
    _, pictures = _computed()
    return {policy: one for (load, policy), one in pictures.items() if load == LOADS[0]}


def test_the_axes_of_the_time_line_have_names_and_units() -> None:
    layout = backtest_page._time_line(_pictures()).layout

    assert [layout[f"yaxis{n}"].title.text for n in ("", 2, 3, 4)] == [
        "segments; load in capacities",
        "load, capacities",
        "policy",
        "policy: reason",
    ]
    assert layout.xaxis4.title.text == "time, UTC"


def test_the_axes_of_the_front_have_names_and_units() -> None:
    rows, _ = _computed()
    [front] = [one["front"] for one in _pictures().values() if "front" in one]
    mine = [row for row in rows if row["load"] == LOADS[0]]
    layout = backtest_page._front(front, mine, 20.0).layout

    assert (layout.xaxis.title.text, layout.yaxis.title.text) == (
        "cost without excess, segment-hours",
        "excess, capacity-hours",
    )
    assert (layout.xaxis2.title.text, layout.yaxis2.title.text) == (
        "price of excess, segment-hours a capacity-hour",
        "regret, cost ÷ least cost",
    )


def test_the_ring_over_time_of_each_policy_has_its_segments_in_the_colours_of_their_load() -> None:
    figure = backtest_page._rings(_pictures())

    cells, frames = figure.data[::2], figure.data[1::2]
    assert [title.text.partition(": ")[2] for title in figure.layout.annotations] == list(_pictures())
    for picture, drawn, framed in zip(_pictures().values(), cells, frames, strict=True):
        assert list(framed.customdata) == [row[0] for row in picture["ring"]["segments"]]
        assert sum(drawn.width) == pytest.approx(sum(framed.width))
        looks = set(zip(drawn.customdata, drawn.marker.color, strict=True))
        assert len(looks) > len(framed.customdata), "a segment does not have one colour for its whole life"


def test_long_names_are_short_beside_the_rows_and_whole_in_the_legend() -> None:
    figure = backtest_page._time_line(_pictures())
    beside = {label for trace in figure.data if trace.yaxis == "y3" for label in trace.y}

    assert len(beside) == len(_pictures()) == 3
    assert all(len(label) <= LABEL_LETTERS + 3 for label in beside)
    assert {LONG, "pip483", "load"} <= {trace.name for trace in figure.data if trace.showlegend}


def test_long_names_with_a_number_sign_get_different_labels() -> None:
    names = [f"nightly #{one} of a long series, part {two}" for one in (1, 2) for two in "abc"]

    labels = backtest_page._labels([*names, "nightly #1"])

    assert len(set(labels.values())) == len(names) + 1
