"""The load over time: which line is drawn for which segment, where it ends, and where there is a threshold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from controller.pages.load_over_time import load_over_time

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def test_each_segment_has_a_line_in_the_order_of_the_records_and_no_threshold_where_none_is_known() -> None:
    records = [{"segment_id": i, "recorded_at": NOW, "rate": 1.0} for i in (7, 3, 5, 3)]

    figure = load_over_time(records, dict.fromkeys((3, 5, 7), NOW), None, "byte_rate_in", "bytes/s")

    assert [(trace["meta"], len(trace["x"])) for trace in figure["data"]] == [(7, 2), (3, 3), (5, 2)]
    assert "shapes" not in figure["layout"]


def test_a_line_goes_on_to_its_end_and_a_record_after_it_is_drawn() -> None:
    later = NOW + timedelta(minutes=5)
    records = [
        {"segment_id": 0, "recorded_at": NOW, "rate": 2.0},
        {"segment_id": 1, "recorded_at": later, "rate": 3.0},
    ]

    figure = load_over_time(records, {0: later, 1: NOW}, None, "msg_rate_out", "messages/s")
    steady, read_after_its_seal = figure["data"]

    assert (steady["x"], steady["y"]) == ([NOW.isoformat(), later.isoformat()], [2.0, 2.0])
    assert set(read_after_its_seal["x"]) == {later.isoformat()}
