"""History: rates appear under their window when their run was merged, and are read back by time."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from controller.landing.history import RateHistory
from controller.landing.schemas import RATE_SCHEMA
from tests.unit.landing.conftest import HOUR, NOON


@pytest.fixture
def history(url: str) -> RateHistory:
    """An empty history."""
    return RateHistory(url)


def rates(topic_id: int) -> pa.Table:
    row = dict.fromkeys(RATE_SCHEMA.names, 1) | {"topic_id": topic_id, "source": "broker"}
    return pa.Table.from_pylist([row], RATE_SCHEMA)


def keep(history: RateHistory, window_end_ms: int, topic_id: int) -> None:
    scratch = history.scratch(f"run-{topic_id}")
    scratch.write("rates", rates(topic_id))
    assert history.read(window_end_ms, window_end_ms).num_rows == 0, "not before it is published"
    assert scratch.rate_rows() == 1
    history.publish(scratch, window_end_ms)
    scratch.discard()


def test_windows_are_read_back_by_the_instant_they_ended_at(history: RateHistory) -> None:
    ends = [NOON - 24 * HOUR, NOON, NOON + 60_000]
    for number, end in enumerate(ends):
        keep(history, end, number)

    found = history.read(NOON - 24 * HOUR, NOON)

    assert [(row["topic_id"], row["window_end_ms"]) for row in found.to_pylist()] == [
        (0, ends[0]),
        (1, ends[1]),
    ]
    assert found.select(RATE_SCHEMA.names).slice(1).equals(rates(1))


def test_scratch_holds_what_is_handed_over_until_it_is_discarded(history: RateHistory) -> None:
    scratch = history.scratch("run")
    scratch.write("changes", rates(7))

    assert scratch.read("changes", RATE_SCHEMA).equals(rates(7))
    assert scratch.read("nothing", RATE_SCHEMA).num_rows == 0
    assert scratch.url == history.location.url("_runs/run")
    scratch.discard()
    assert scratch.read("changes", RATE_SCHEMA).num_rows == 0


def test_old_days_are_deleted(history: RateHistory) -> None:
    keep(history, NOON - 24 * HOUR, 0)
    keep(history, NOON, 1)

    assert history.expire(date(2027, 1, 15)) == ["day=2027-01-14"]
    assert [row["topic_id"] for row in history.read(NOON - 24 * HOUR, NOON).to_pylist()] == [1]
