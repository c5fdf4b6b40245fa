"""The demo's report: figures, the table of operations, and a page that needs no network."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from controller.client.history_check import Kind, Verdict
from controller.demo import report
from controller.demo.policy import THRESHOLDS, policy_at
from controller.demo.story import TOPIC, DayRecord, Moment

BEGAN = datetime(2026, 5, 17, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    """An instant of the day."""
    return BEGAN + timedelta(seconds=seconds)


def verdict(found: dict[Kind, int] | None = None, **changes: int) -> Verdict:
    """1,200 messages, all well, but for what was found and the changes."""
    figures = {"sent": 1200, "delivered": 1200, "redelivered": 0, "ended": 1200, "acknowledged": 1200}
    return Verdict(**figures | changes, counts=dict.fromkeys(Kind, 0) | (found or {}), examples=())


def operation(kind: str, at: float, **changes: Any) -> dict[str, Any]:
    """As `inspect.operations` shows it: intended then, fenced after 30 ms, committed after 40."""
    return {
        "operation_id": 5, "kind": kind, "origin": "auto", "reason": "msgRateIn", "parents": [0],
        "creates": [{"segment_id": 1, "hash_range": "0000-7fff"}], "epoch": 1, "intended_at": after(at), "fenced_at": after(at + 0.03),
        "committed_at": after(at + 0.04), **changes,
    }  # fmt: skip


def lived(
    segment_id: int, created: int, sealed: int | None, start: int = 0, end: int = 65535
) -> dict[str, Any]:
    """A segment as it was listed at some epoch."""
    return {
        "segment_id": segment_id, "created_epoch": created, "sealed_epoch": sealed,
        "range_start": start, "range_end": end, "hash_range": f"{start:04x}-{end:04x}",
    }  # fmt: skip


@pytest.fixture
def seen() -> DayRecord:
    """One split ten seconds into a day of twenty."""
    return DayRecord(
        began_at=BEGAN.timestamp(),
        moments=[
            Moment(at_seconds=5.0, messages_per_second=700.0, load={0: 650.0}, segments=1, consumers=1),
            Moment(
                at_seconds=20.0, messages_per_second=600.0, load={1: 300.0, 2: 310.0}, segments=2, consumers=3
            ),
        ],
        operations=[operation("create", 0.0, origin="manual", fenced_at=None), operation("split", 10.0)],
        changes=[{"epoch": 0, "committed_at": after(-3.0)}, {"epoch": 1, "committed_at": after(10.04)}],
        segments=[lived(0, 0, None), lived(0, 0, 1), lived(1, 1, None, 0, 32767), lived(2, 1, None, 32768)],
    )


def panels() -> go.Figure:
    """The page's four panels, empty."""
    return make_subplots(rows=4, cols=1)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (verdict(), "1,200 messages produced, 1,200 consumed, 0 lost, 0 out of key order, 0 delivered again"),
        (
            verdict({Kind.LOST: 1, Kind.OVERTAKEN: 1, Kind.GAP: 2}, delivered=1201, redelivered=2),
            "1,200 messages produced, 1,199 consumed, 1 lost, 3 out of key order, 2 delivered again",
        ),
    ],
    ids=["all well", "everything wrong"],
)
def test_a_redelivery_is_not_counted_as_consumed(found: Verdict, line: str) -> None:
    assert report.counts(found) == line


def test_each_subscription_has_a_line() -> None:
    lines = report.count_lines({"billing": verdict(), "shipping": verdict({Kind.LOST: 2})})

    assert [line.partition(":")[0] for line in lines] == ["billing", "shipping"]
    assert "2 lost" in lines[1]


def test_an_operation_shows_its_trigger_and_its_latencies(seen: DayRecord) -> None:
    create, split = report.operation_rows(seen)

    assert (split["kind"], split["trigger"], split["reason"]) == ("split", "auto", "msgRateIn")
    assert (split["sealed"], split["created"], split["epoch"]) == ([0], ["1:0000-7fff"], 1)
    assert (split["intent to commit"], split["fenced"]) == ("40 ms", "10 ms")
    assert (create["intent to commit"], create["fenced"]) == ("40 ms", "")


def test_an_operation_that_was_never_committed_has_no_latency() -> None:
    [row] = report.operation_rows(DayRecord(operations=[operation("merge", 1.0, committed_at=None)]))

    assert (row["intent to commit"], row["fenced"]) == ("", "")


def test_a_segment_is_drawn_once_from_its_creation_to_its_seal(seen: DayRecord) -> None:
    figure = panels()

    report._draw_ranges(figure, seen)

    assert [one.text for one in figure.layout.annotations] == ["0", "1", "2"]
    drawn = {trace.text: (min(trace.x), max(trace.x), min(trace.y), max(trace.y)) for trace in figure.data}
    assert drawn == {
        "segment 0 [0000-ffff]": (0.0, pytest.approx(10.04), 0, 65536),
        "segment 1 [0000-7fff]": (pytest.approx(10.04), 20.0, 0, 32768),
        "segment 2 [8000-ffff]": (pytest.approx(10.04), 20.0, 32768, 65536),
    }


def test_a_segment_has_no_load_where_it_was_not_active(seen: DayRecord) -> None:
    figure = panels()

    report._draw_load(figure, seen)

    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines == {
        "segment 0": [650.0, None],
        "segment 1": [None, 300.0],
        "segment 2": [None, 310.0],
        "whole topic": [700.0, 600.0],
    }
    thresholds = sorted(shape.y0 for shape in figure.layout.shapes)
    assert thresholds == sorted([THRESHOLDS["split_msg_rate_in"], THRESHOLDS["merge_msg_rate_in"]])


def test_the_thresholds_drawn_are_those_that_the_topic_was_scaled_by(seen: DayRecord) -> None:
    figure, seen.policy = panels(), policy_at(0.5)

    report._draw_load(figure, seen)

    thresholds = sorted(shape.y0 for shape in figure.layout.shapes)
    assert thresholds == [THRESHOLDS["merge_msg_rate_in"] / 2, THRESHOLDS["split_msg_rate_in"] / 2]


def test_only_committed_acts_of_the_autoscaler_are_decisions(seen: DayRecord) -> None:
    figure = panels()

    report._draw_decisions(figure, seen)

    [trace] = figure.data
    assert (list(trace.x), list(trace.y)) == ([pytest.approx(10.04)], [pytest.approx(40.0)])
    assert list(trace.text) == ["split (msgRateIn)"]


def test_the_page_holds_everything_and_loads_nothing(seen: DayRecord, tmp_path: Path) -> None:
    path = tmp_path / "page.html"

    report.write_page(path, seen, {"billing": verdict()}, "synthetic day")

    page = path.read_text(encoding="utf-8").replace(r"\u002f", "/")
    assert TOPIC in page
    assert "Load: synthetic day" in page
    assert "billing: 1,200 messages produced" in page
    assert "Verdict: did not see a split by consumers; did not see a merge" in page
    assert "hash (hexadecimal)" in page
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="(https?:)?//', page)


def test_a_day_on_which_nothing_was_seen_still_makes_a_page(tmp_path: Path) -> None:
    report.write_page(
        tmp_path / "page.html", DayRecord(), {"billing": verdict(sent=0, delivered=0)}, "nothing"
    )

    assert (tmp_path / "page.html").stat().st_size > 0


@pytest.mark.parametrize(
    ("operations", "verdicts", "problems"),
    [
        (
            [
                operation("split", 1.0),
                operation("split", 2.0, reason="consumer-count"),
                operation("merge", 3.0, reason="cold"),
            ],
            {"billing": verdict(), "shipping": verdict()},
            [],
        ),
        (
            [operation("split", 1.0)],
            {"billing": verdict({Kind.LOST: 1}), "shipping": verdict({Kind.OVERTAKEN: 1})},
            [
                "did not see a split by consumers",
                "did not see a merge",
                "messages of billing were lost or out of key order",
                "messages of shipping were lost or out of key order",
            ],
        ),
    ],
    ids=["all well", "everything wrong"],
)
def test_the_verdict_names_every_problem(
    operations: list[dict[str, Any]], verdicts: dict[str, Verdict], problems: list[str]
) -> None:
    judged = report.judge(DayRecord(operations=operations), verdicts)

    assert judged == problems
    assert report.judgement(judged) == ("; ".join(problems) or "all expectations met")


@pytest.mark.parametrize(
    ("waits", "problems"),
    [
        ({"billing-1": 0.2, "billing-2": 10.0}, ()),
        ({"billing-1": 10.1}, ("billing-1 waited longer than 10 s for its first message",)),
        ({"billing-1": None}, ("billing-1 waited longer than 10 s for its first message",)),
    ],
)
def test_a_consumer_that_waits_too_long_for_its_first_message_fails_the_day(
    waits: dict[str, float | None], problems: tuple[str, ...]
) -> None:
    day = DayRecord(waits=waits)
    judged = report.judge(day, {"billing": verdict()})

    assert tuple(one for one in judged if "waited" in one) == problems


def test_the_waits_of_all_consumers_are_one_line() -> None:
    day = DayRecord(waits={"billing-2": None, "billing-1": 0.24})

    assert report.waits(day) == "waited for the first message: billing-1 0.2 s, billing-2 got no message"
