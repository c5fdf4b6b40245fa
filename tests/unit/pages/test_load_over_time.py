"""The load over time: which line is drawn for which segment, and where there is a threshold."""

from __future__ import annotations

from datetime import UTC, datetime

from controller.pages.load_over_time import load_over_time

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def test_each_segment_has_a_line_in_the_order_of_the_records_and_no_threshold_where_none_is_known() -> None:
    records = [{"segment_id": i, "recorded_at": NOW, "rate": 1.0} for i in (7, 3, 5, 3)]

    figure = load_over_time(records, None, "byte_rate_in", "bytes/s")

    assert [(trace["meta"], len(trace["x"])) for trace in figure["data"]] == [(7, 1), (3, 2), (5, 1)]
    assert "shapes" not in figure["layout"]
