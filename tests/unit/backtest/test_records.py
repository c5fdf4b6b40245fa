"""Records kept in arrays are those of the aggregation's one rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.backtest.records import RecordArrays
from controller.domain.load_record import LoadRecord, LoadStats, LoadThresholds
from controller.domain.load_record_rule import next_record

SPLIT, MERGE = LoadStats(10.0, 100.0, 40.0, 80.0), LoadStats(4.0, 20.0, 10.0, 20.0)
rates = st.sampled_from([0.0, 0.01, 0.02, 0.5, 0.6, 3.99, 4.0, 4.5, 9.0, 10.0, 10.5, 20.0, 200.0])


@given(
    st.data(),
    st.integers(1, 4),
    st.sampled_from([(0,), (0, 1), (1, 3), (0, 1, 2, 3)]),
    st.booleans(),
    st.sampled_from([0.0, 20.0]),
)
def test_they_are_what_the_rule_keeps_one_observation_after_the_other(
    data: st.DataObject, segments: int, metrics: tuple[int, ...], strict: bool, idle_merge: float
) -> None:
    thresholds = LoadThresholds(SPLIT, LoadStats(MERGE.msg_rate_in, 20.0, 10.0, idle_merge))
    arrays = RecordArrays(thresholds, 0.25, strict, metrics)
    arrays.adopt(
        np.full((len(metrics), segments), np.nan), np.zeros(segments, np.int64), np.full(segments, -1)
    )
    kept: list[LoadRecord | None] = [None] * segments
    now = 0
    for _ in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(1, 6))
        table = data.draw(
            st.lists(
                rates, min_size=len(metrics) * count * segments, max_size=len(metrics) * count * segments
            )
        )
        batch = np.array(table).reshape(len(metrics), count, segments)
        instants = now + 1 + np.arange(count)
        arrays.observe(list(batch), instants)
        for row, instant in enumerate(instants.tolist()):
            for segment in range(segments):
                values = [0.0] * 4
                for place, metric in enumerate(metrics):
                    values[metric] = float(batch[place, row, segment])
                kept[segment] = next_record(
                    kept[segment], LoadStats(*values), instant, thresholds, strict_pulsar=strict
                ).record
        now += count
        for segment, record in enumerate(kept):
            assert record is not None
            assert [record.stats.rates[m] for m in metrics] == arrays.written[:, segment].tolist()
            assert record.modified_at == arrays.modified_at[segment]
            assert (-1 if record.cold_since is None else record.cold_since) == arrays.cold_since[segment]


def test_a_look_ahead_finds_the_first_record_that_would_be_written() -> None:
    thresholds = LoadThresholds(SPLIT, MERGE)
    arrays = RecordArrays(thresholds, 0.25, False, (0,))
    arrays.adopt(np.array([[8.0]]), np.zeros(1, np.int64), np.full(1, -1))

    ahead = [np.array([[8.0], [9.0], [10.01], [6.0], [5.9]])]

    assert arrays.rewrites(ahead)[:, 0].tolist() == [False, False, True, False, True]
    assert arrays.crossings(ahead)[:, 0].tolist() == [False, False, True, False, False]
    assert arrays.written.tolist() == [[8.0]]


def test_what_was_never_written_is_news() -> None:
    arrays = RecordArrays(LoadThresholds(SPLIT, MERGE), 0.25, False, (0,))
    arrays.adopt(np.array([[np.nan]]), np.zeros(1, np.int64), np.full(1, -1))

    assert arrays.rewrites([np.array([[0.0]])]).tolist() == [[True]]
    with pytest.raises(IndexError):
        arrays.rewrites([])
