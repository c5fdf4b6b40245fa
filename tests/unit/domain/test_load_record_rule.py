"""When a load record is rewritten and since when a segment is cold; rates out of counters of any quality."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.counter_rates import CounterSample, NoRate, WindowLoad, judge_counters
from controller.domain.evaluator import decide
from controller.domain.load_record import LoadRecord, LoadStats, LoadThresholds
from controller.domain.load_record_rule import LoadUpdate, is_material_change, next_record
from controller.domain.policy import AutoScalePolicy
from tests.support.counters import rates_from_counters
from tests.unit.domain.situations import NOW, topic

THRESHOLDS = AutoScalePolicy().thresholds
MINUTE = 60_000
any_rate = st.sampled_from([0.0, 1.0, 999.0, 1000.0, 1001.0, 9_999.0, 10_000.0, 10_001.0]) | st.floats(0, 2e4)
any_stats = st.builds(LoadStats, any_rate, any_rate, any_rate, any_rate)


def msgs(rate: float) -> LoadStats:
    return LoadStats(msg_rate_in=float(rate))


def observe(*rates: float, start: int = 0) -> list[LoadUpdate]:
    """A minute's observation after the other."""
    updates: list[LoadUpdate] = []
    previous = None
    for minute, rate in enumerate(rates):
        updates.append(next_record(previous, msgs(rate), start + minute * MINUTE, THRESHOLDS))
        previous = updates[-1].record
    return updates


@pytest.mark.parametrize(
    ("last", "now", "material"),
    [
        (100, 125, False),
        (100, 125.01, True),
        (100, 75, False),
        (100, 74.99, True),
        (0, 0, False),
        (0, 0.001, True),
        (5, 0, True),
    ],
)
@pytest.mark.parametrize("metric", [0, 1, 2, 3])
def test_a_change_is_material_above_a_quarter_in_any_metric(
    last: float, now: float, material: bool, metric: int
) -> None:
    def stats(rate: float) -> LoadStats:
        return LoadStats(*(rate if index == metric else 7.0 for index in range(4)))

    assert is_material_change(stats(last), stats(now)) is material


def test_the_first_observation_is_always_written_zeros_included() -> None:
    (update,) = observe(0)
    assert update == LoadUpdate(LoadRecord(LoadStats(), 0, 0, 0), True)


def test_a_steady_rate_is_written_once_and_stays_fresh() -> None:
    updates = observe(*[5_000 + jitter for jitter in (0, 900, -900, 300, 0)])
    assert [update.must_write for update in updates] == [True, False, False, False, False]
    assert updates[-1].record == LoadRecord(msgs(5_000), 0, None, 4 * MINUTE)


def test_consequence_1_drift_inside_the_band_does_not_hide_a_crossing() -> None:
    """9,000 on record, 11,000 in truth: 22 % is no material change, but the split threshold lies between."""
    assert not is_material_change(msgs(9_000), msgs(11_000))
    update = observe(9_000, 11_000)[-1]
    assert update == LoadUpdate(LoadRecord(msgs(11_000), MINUTE, None, MINUTE), True)
    down = observe(11_000, 9_500)[-1]
    assert down.must_write
    assert down.record.stats == msgs(9_500)


def test_consequence_2_a_nearly_idle_segment_with_jitter_is_not_rewritten_and_merges() -> None:
    """1 → 2 messages/s is 100 %: Pulsar rewrites the record and its merge window starts again."""
    assert is_material_change(msgs(1), msgs(2))
    minutes = [1, 2, 1, 3, 2, 1]
    updates = observe(*minutes, start=NOW - 5 * MINUTE)
    assert [update.must_write for update in updates] == [True] + [False] * 5
    assert updates[-1].record.cold_since == NOW - 5 * MINUTE
    assert decide(topic(updates[-1].record, updates[-1].record)).decisions


def test_consequence_2_also_with_jitter_above_the_floor_the_cold_instant_stays() -> None:
    updates = observe(100, 200, 100, 300, 100, 200, start=NOW - 5 * MINUTE)
    assert all(update.must_write for update in updates)
    assert updates[-1].record == LoadRecord(msgs(200), NOW, NOW - 5 * MINUTE, NOW)
    assert decide(topic(updates[-1].record, updates[-1].record)).decisions
    pulsar = topic(updates[-1].record, updates[-1].record, policy=AutoScalePolicy(strict_pulsar=True))
    assert not decide(pulsar).decisions


@given(st.lists(any_stats, min_size=2, max_size=8))
def test_strict_pulsar_writes_what_pulsars_reporter_writes_and_when(series: list[LoadStats]) -> None:
    """Drift inside the band stays unseen, jitter near zero is rewritten: its rule and nothing else."""
    written, modified_at, previous = series[0], 0, None
    for minute, stats in enumerate(series):
        update = next_record(previous, stats, minute * MINUTE, THRESHOLDS, strict_pulsar=True)
        if previous is None or is_material_change(written, stats):
            written, modified_at = stats, minute * MINUTE
        previous = update.record
        assert (previous.stats, previous.modified_at) == (written, modified_at)
        assert previous.observed_at == minute * MINUTE


def test_strict_pulsar_has_no_floor_and_sees_no_crossing() -> None:
    for last, now, is_written in ((9_000, 11_000, False), (1, 2, True), (0, 0.1, True), (100, 120, False)):
        record = LoadRecord(msgs(last), 0, None, 0)
        update = next_record(record, msgs(now), MINUTE, THRESHOLDS, strict_pulsar=True)
        assert (update.record.stats == msgs(now)) is is_written
        assert update.record.modified_at == (MINUTE if is_written else 0)


def test_consequence_3_a_dead_owner_leaves_a_number_that_ages() -> None:
    """Nothing observes the segment any more, so ``observed_at`` stops and the reading becomes stale."""
    (update,) = observe(20_000, start=NOW)
    assert decide(topic(update.record)).decisions
    assert not decide(replace(topic(update.record), now=NOW + 300_001)).decisions


def test_warming_up_ends_the_cold_spell_and_cooling_starts_another() -> None:
    cold_since = [update.record.cold_since for update in observe(500, 999, 1_000, 999, 10)]
    assert cold_since == [0, 0, None, 3 * MINUTE, 3 * MINUTE]


def test_new_thresholds_restart_the_cold_instant_without_touching_the_rates() -> None:
    warm = LoadRecord(msgs(1_500), 0, None, 0)
    higher = AutoScalePolicy(merge_msg_rate_in=2_000.0).thresholds
    update = next_record(warm, msgs(1_500), MINUTE, higher)
    assert update == LoadUpdate(LoadRecord(msgs(1_500), 0, MINUTE, MINUTE), True)
    assert next_record(update.record, msgs(1_500), 2 * MINUTE, higher).must_write is False


@pytest.mark.parametrize(
    ("record", "rate_in", "observed_at", "thresholds", "expected"),
    [
        (
            LoadRecord(msgs(900), 0, 0, 0),
            700,
            MINUTE,
            AutoScalePolicy(merge_msg_rate_in=800.0).thresholds,
            LoadUpdate(LoadRecord(msgs(700), MINUTE, MINUTE, MINUTE), True),
        ),
        (
            LoadRecord(msgs(900), 500, 400, 1_000),
            20_000,
            999,
            THRESHOLDS,
            LoadUpdate(LoadRecord(msgs(900), 500, 400, 1_000), False),
        ),
        (
            LoadRecord(msgs(900), 1_000, 400, 1_000),
            20_000,
            1_000,
            THRESHOLDS,
            LoadUpdate(LoadRecord(msgs(20_000), 1_000, None, 1_000), True),
        ),
    ],
    ids=[
        "lower thresholds under which the record is not cold restart the cold instant",
        "a late observation changes nothing",
        "a window computed again with late samples replaces its reading",
    ],
)
def test_what_becomes_of_a_record(
    record: LoadRecord, rate_in: float, observed_at: int, thresholds: LoadThresholds, expected: LoadUpdate
) -> None:
    assert next_record(record, msgs(rate_in), observed_at, thresholds) == expected


@pytest.mark.parametrize(("rate", "written"), [(10, False), (10.5, True)])
def test_from_nothing_any_rate_above_the_floor_is_news(rate: float, written: bool) -> None:
    assert observe(0, rate)[-1].must_write is written


def sides(stats: LoadStats) -> list[tuple[bool, bool]]:
    """For each metric: whether the rate is above the split threshold, and whether it is below the merge threshold."""
    limits = zip(stats.rates, THRESHOLDS.split.rates, THRESHOLDS.merge.rates, strict=True)
    return [(rate > split_at, rate < merge_at) for rate, split_at, merge_at in limits]


@given(st.lists(any_stats, min_size=1, max_size=12))
def test_the_record_always_stands_where_the_last_observation_stands(series: list[LoadStats]) -> None:
    """On the same side of every threshold, cold exactly when it is, and never further off than the band."""
    previous: LoadRecord | None = None
    cold_since: int | None = None
    for instant, stats in enumerate(series):
        update = next_record(previous, stats, instant, THRESHOLDS)
        record = update.record
        cold = THRESHOLDS.is_cold(stats)
        cold_since = (instant if cold_since is None else cold_since) if cold else None
        assert record.cold_since == cold_since
        assert record.observed_at == instant
        assert sides(record.stats) == sides(stats)
        for kept, rate, merge_at in zip(record.stats.rates, stats.rates, THRESHOLDS.merge.rates, strict=True):
            assert abs(kept - rate) <= max(0.25 * kept, 0.01 * merge_at)
        if not update.must_write:
            assert previous is not None
            assert replace(record, observed_at=previous.observed_at) == previous
        if record.stats != (previous and previous.stats):
            assert record.modified_at == instant
        assert next_record(record, stats, instant, THRESHOLDS) == LoadUpdate(record, False)
        previous = record


def counters(source: str, *points: tuple[int, int]) -> list[CounterSample]:
    """Samples at (second, messages in); bytes are tenfold, and as much goes out as comes in."""
    return [CounterSample(source, s * 1000, m, 10 * m, m, 10 * m) for s, m in points]


def rate(samples: list[CounterSample], end_seconds: int = 60) -> float | None:
    load = rates_from_counters(samples, end_seconds * 1000)
    if load is None:
        return None
    stats = load.stats
    assert stats.byte_rate_in == pytest.approx(10 * stats.msg_rate_in)
    assert (stats.msg_rate_out, stats.byte_rate_out) == (stats.msg_rate_in, stats.byte_rate_in)
    return stats.msg_rate_in


MEAN_20 = LoadStats(20, 200, 20, 200)
WINDOWS = {
    "the mean over the whole window": (
        counters("b1", (0, 100), (10, 300), (40, 900), (60, 1_300)),
        WindowLoad(MEAN_20, 60_000, 60_000),
    ),
    # The broker loaded the log anew, or two clocks were taken for one: the number alone does not say which.
    "not a counter that went back and what lies beside it": (
        counters("b1", (0, 9_000), (10, 9_200), (20, 9_400), (30, 100), (40, 300), (50, 500), (60, 700)),
        WindowLoad(MEAN_20, 60_000, 30_000),
    ),
    "the sum over an owner's move, without its gap": (
        counters("b1", (0, 7_000), (30, 7_600)) + counters("b2", (35, 10), (60, 510)),
        WindowLoad(MEAN_20, 60_000, 55_000),
    ),
    "no samples after the end of the window": (
        counters("b1", (0, 0), (50, 500), (61, 9_999)),
        WindowLoad(LoadStats(10, 100, 10, 100), 50_000, 50_000),
    ),
}


@pytest.mark.parametrize(("samples", "load"), WINDOWS.values(), ids=WINDOWS)
def test_the_load_of_a_window_is(samples: list[CounterSample], load: WindowLoad) -> None:
    assert rate(samples) == load.stats.msg_rate_in
    assert rates_from_counters(samples, 60_000) == load


def test_an_interval_across_the_left_edge_counts_by_its_overlap() -> None:
    assert rate(counters("b1", (-10, 0), (10, 2_000), (60, 2_000))) == pytest.approx(1_000 / 60)


def test_a_source_that_begins_inside_the_window_is_rated_over_what_was_observed() -> None:
    samples = counters("b1", (40, 5_000_000), (60, 5_000_400))
    assert rate(samples) == 20
    load = rates_from_counters(samples, 60_000)
    assert load is not None
    assert load.covered_ms == 20_000


def test_where_every_interval_went_back_there_is_no_rate_and_a_reason() -> None:
    samples = counters("b1", (0, 9_000), (30, 9_600), (40, 100), (60, 500))
    assert rate(samples) is None
    assert judge_counters(samples, 60_000) == NoRate("b1")
    assert judge_counters(samples[:1], 60_000) is None


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (counters("b1@1", (0, 9_000), (30, 9_600)) + counters("b1@2", (40, 100), (60, 500)), 20),
        (counters("b1", (0, 0), (60, 600)) + counters("b2", (0, 0), (60, 300)), 15),
    ],
    ids=["a restarted broker, which has another name", "two sources at once"],
)
def test_each_name_has_a_series_and_series_add_up(samples: list[CounterSample], expected: float) -> None:
    assert rate(samples) == expected


@pytest.mark.parametrize(("went_back", "expected"), [(2, 20), (21, None)])
def test_beside_a_counter_that_went_back_only_ten_times_as_much_counts(
    went_back: int, expected: float | None
) -> None:
    samples = counters("b1", (0, 0), (10, 200), (11, 200 - went_back), (21, 400 - went_back))
    assert rate(samples) == expected


def test_of_several_readers_the_one_that_observed_most_counts() -> None:
    before, after = counters("b1", (0, 0), (10, 200), (40, 800)), counters("b1", (30, 600), (60, 1_200))
    both = [*(replace(one, reader="old") for one in before), *(replace(one, reader="new") for one in after)]
    assert rates_from_counters(both, 60_000) == WindowLoad(LoadStats(20, 200, 20, 200), 40_000, 40_000)
    later = [replace(one, reader="new") for one in counters("b1", (20, 400), (60, 1_200))]
    assert rates_from_counters(both[:3] + later, 60_000) == WindowLoad(
        LoadStats(20, 200, 20, 200), 60_000, 40_000
    )


def test_several_samples_of_one_source_at_one_instant_are_the_greatest_of_each_counter() -> None:
    samples = [
        *counters("b1", (0, 0), (60, 600)),
        CounterSample("b1", 60_000, 1_200, 0, 0, 0),
    ]
    load = rates_from_counters(samples, 60_000)
    assert load is not None
    assert load.stats == LoadStats(20, 100, 10, 100)


@pytest.mark.parametrize("samples", [[], counters("b1", (30, 5)), counters("b1", (-90, 5), (0, 9))])
def test_without_an_interval_in_the_window_nothing_is_known(samples: list[CounterSample]) -> None:
    assert rate(samples) is None


@given(
    st.sets(st.integers(-30_000, 60_000), min_size=2, max_size=12),
    st.integers(0, 5_000),
    st.integers(0, 10**12),
    st.data(),
)
def test_a_constant_rate_is_found_exactly_however_it_is_sampled(
    instants: set[int], per_ms: int, start: int, data: st.DataObject
) -> None:
    samples = [
        CounterSample("b1", t, start + per_ms * (t + 30_000), per_ms * (t + 30_000), 0, 0) for t in instants
    ]
    load = rates_from_counters(data.draw(st.permutations(samples + samples[::2])), 60_000)
    if max(instants) > 0:
        assert load is not None
        assert load.stats.msg_rate_in == pytest.approx(per_ms * 1000)
        assert load.stats.byte_rate_in == pytest.approx(per_ms * 1000)
        assert load.observed_at == max(instants)
    else:
        assert load is None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 50)), max_size=10), st.data())
def test_the_order_of_arrival_and_repetition_play_no_part(
    points: list[tuple[int, int]], data: st.DataObject
) -> None:
    samples = counters("b1", *points) + counters("b2", *points[::2])
    again = data.draw(st.permutations(samples + samples))
    assert rates_from_counters(again, 60_000) == rates_from_counters(samples, 60_000)


@given(st.lists(st.integers(0, 1_000), min_size=2, max_size=8), st.integers(1, 7))
def test_what_a_source_counted_is_what_the_windows_found(steps: list[int], cut: int) -> None:
    """Rates of adjoining windows, times the time covered, add up to the increase over both."""
    total, points = 0, []
    for second, step in enumerate(steps):
        total += step
        points.append((second, total))
    samples = counters("b1", *points)
    end = len(steps) - 1
    middle = min(cut, end) * 1000
    found = 0.0
    for window_end, window in ((middle, middle), (end * 1000, end * 1000 - middle)):
        load = rates_from_counters(samples, window_end, window) if window else None
        found += load.stats.msg_rate_in * load.covered_ms / 1000 if load else 0.0
    assert found == pytest.approx(total - points[0][1])
