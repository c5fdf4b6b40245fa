"""What a profile that looks back is shown: loads remembered tick by tick, through reshapes and gaps. The rule that backtests
and retraced decisions go by remembers the same of the same windows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.clock import to_ms
from controller.domain.evaluation_input import TICKS_OF_MEMORY, EvaluationInput
from controller.domain.load_memory import LoadMemory, origins_of
from controller.domain.load_record import METRICS, LoadStats
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import plan_merge, plan_recut, plan_split
from controller.store.decisions.evaluation_inputs import load_evaluation_inputs
from controller.store.topics import policies
from tests.support.aggregation import END_MS, MINUTE_MS, Run, adaptive_run
from tests.support.bench import Bench


@pytest.fixture
def run(bench: Bench, tmp_path: Path) -> Iterator[Run]:
    """A live topic of one segment that is decided on by `adaptive`; the loader logs in as itself."""
    with adaptive_run(bench, tmp_path) as run:
        yield run


def minute(run: Run, index: int, rate: int, segment_id: int = 0) -> None:
    """One minute's traffic at so many messages a second, landed."""
    begin = 60 * index - 60
    run.land(*((at, 10**7 * (index + 2) + rate * (at - begin)) for at in range(begin, begin + 61, 10)),
             segment_id=segment_id, source=f"minute-{index}")  # fmt: skip


def split(run: Run, segment_id: int) -> None:
    run.bench.reshape(lambda layout, _: plan_split(layout, segment_id))


def situation(run: Run) -> EvaluationInput:
    capabilities = {run.bench.plane.name: run.bench.plane.capabilities}
    return run.bench.store.in_transaction(load_evaluation_inputs, [run.topic_id], capabilities)[run.topic_id]


def remembered(run: Run, segment_id: int = 0) -> list[float]:
    """Messages in a second, oldest first."""
    return [round(stats.msg_rate_in, 3) for stats in situation(run).recent_loads.get(segment_id, ())]


def test_each_window_is_a_tick_also_where_no_record_changes(run: Run) -> None:
    for index, rate in enumerate((100, 101, 102)):
        minute(run, index, rate)
        run.aggregate(minutes=index)

    assert remembered(run) == [100, 101, 102]
    assert run.rate() == 100  # no news by the rule for records
    assert situation(run).recent_loads[0][0] == LoadStats(100, 10_000, 0, 0)


def test_a_topic_whose_profile_does_not_look_back_is_not_remembered(run: Run) -> None:
    run.bench.store.in_transaction(
        policies.set_topic, run.topic_id, PolicyOverride(profile="pip483"), actor="t"
    )
    minute(run, 0, 100)
    run.aggregate()

    assert run.bench.scalar("SELECT count(*) FROM cleave.load_memory") == 0


def test_a_short_gap_is_bridged_and_after_a_long_one_memory_begins_anew(run: Run) -> None:
    for index, rate in ((0, 100), (3, 200), (9, 300)):
        minute(run, index, rate)
        run.aggregate(minutes=index)
        if index == 3:
            assert remembered(run) == [100, 100, 100, 200]

    assert remembered(run) == [300]


def test_with_short_ticks_a_gap_of_minutes_is_bridged_as_well(run: Run) -> None:
    with run.bench.store.transaction() as tx:
        override = PolicyOverride(profile="adaptive", load_memory_seconds=TICKS_OF_MEMORY)
        policies.set_topic(tx, run.topic_id, override, actor="t")
    for index, rate in ((0, 100), (1, 200)):
        minute(run, index, rate)
        run.aggregate(minutes=index)

    assert remembered(run) == [100] * (TICKS_OF_MEMORY - 1) + [200]


def test_several_runs_within_a_tick_are_one(run: Run) -> None:
    with run.bench.store.transaction() as tx:
        override = PolicyOverride(profile="adaptive", load_memory_seconds=120 * TICKS_OF_MEMORY)
        policies.set_topic(tx, run.topic_id, override, actor="t")
    for index, rate in enumerate((100, 200, 300)):  # the window ends at 12:00, 12:01 and 12:02
        minute(run, index, rate)
        run.aggregate(minutes=index)

    assert remembered(run) == [200, 300]


def test_memory_is_as_long_as_the_rule_looks_back(run: Run) -> None:
    run.bench.execute(
        "INSERT INTO cleave.load_memory (topic_id, segment_id, tick_seconds, last_tick, rates)"
        " SELECT :t, 0, 60, CAST(:tick AS bigint), array_agg(n) FROM generate_series(1, 180) n",
        t=run.topic_id,
        tick=END_MS // MINUTE_MS - 1,
    )
    minute(run, 0, 7)
    run.aggregate()

    ticks = remembered(run)
    assert len(ticks) == TICKS_OF_MEMORY
    assert (ticks[0], ticks[-1]) == (5, 7)  # the oldest of 45 fell out


def test_children_remember_what_their_parents_carried_by_the_shares_they_have(run: Run) -> None:
    for index, rate in enumerate((100, 200)):
        minute(run, index, rate)
        run.aggregate(minutes=index)
    split(run, 0)
    minute(run, 2, 60, segment_id=1)
    minute(run, 2, 180, segment_id=2)
    run.aggregate(minutes=2)

    assert remembered(run, 1) == [25, 50, 60]
    assert remembered(run, 2) == [75, 150, 180]
    assert situation(run).strikes == {}


def test_while_a_sibling_is_silent_widths_say_what_a_child_carried(run: Run) -> None:
    minute(run, 0, 100)
    run.aggregate()
    split(run, 0)
    minute(run, 1, 60, segment_id=1)
    run.aggregate(minutes=1)

    assert remembered(run, 1) == [50, 60]


def test_a_merged_segment_remembers_the_sum(run: Run) -> None:
    split(run, 0)
    for index, rates in enumerate(((10, 20), (30, 40))):
        for segment_id, rate in zip((1, 2), rates, strict=True):
            minute(run, index, rate, segment_id)
        run.aggregate(minutes=index)
    run.bench.reshape(lambda layout, _: plan_merge(layout, 1, 2))
    minute(run, 2, 5, segment_id=3)
    run.aggregate(minutes=2)

    assert remembered(run, 3) == [30, 70, 5]


def test_after_a_recut_widths_say_what_each_carried(run: Run) -> None:
    """The first child lies in one parent, the second in both: its load says nothing of the first one's share of that parent."""
    split(run, 0)
    minute(run, 0, 100, segment_id=1)
    minute(run, 0, 300, segment_id=2)
    run.aggregate()
    run.bench.reshape(lambda layout, _: plan_recut(layout, (1, 2), (0x4000,)))
    minute(run, 1, 50, segment_id=3)
    minute(run, 1, 350, segment_id=4)
    run.aggregate(minutes=1)

    assert remembered(run, 3) == [50, 50]
    assert remembered(run, 4) == [350, 350]
    assert situation(run).strikes == {}


def test_cuts_in_vain_are_counted_down_the_line(run: Run) -> None:
    segment_id, index = 0, 0
    for strikes in (1, 2):
        minute(run, index, 1_000, segment_id)
        run.aggregate(minutes=index)
        index += 1
        split(run, segment_id)
        low, high = (2 * strikes - 1, 2 * strikes)
        minute(run, index, 900, low)
        minute(run, index, 100, high)
        run.aggregate(minutes=index)
        index += 1
        assert situation(run).strikes == {low: strikes}
        segment_id = low


def test_what_is_pruned_is_forgotten_with_its_load(run: Run) -> None:
    minute(run, 0, 100)
    run.aggregate()
    split(run, 0)
    run.bench.settle(collects=True)

    assert run.bench.scalar("SELECT count(*) FROM cleave.load_memory") == 0


def test_a_run_that_came_too_late_is_no_tick(run: Run) -> None:
    minute(run, 1, 100)
    run.aggregate(minutes=1)
    minute(run, 0, 900)
    run.aggregate(minutes=0)

    assert remembered(run) == [100]
    assert run.bench.scalar("SELECT count(*) FROM staging.tick_row") == 0


def land_minute(run: Run, index: int, counted: dict[int, int], silent: frozenset[int]) -> None:
    """A minute's traffic into the active segments, uneven; the sealed ones are reported as well."""
    begin = 60 * index - 60
    for id_, segment in run.bench.layout.segments.items():
        if id_ in silent:
            continue
        heavy = 12 if segment.hash_range.contains(0x8000) else 1
        more = heavy * (1_000 + 700 * id_ + 130 * index) if segment.is_active else 0
        run.land(*((begin + 10 * n, counted[id_] + n * more) for n in range(7)), segment_id=id_)
        counted[id_] += 6 * more


def recorded(run: Run, memory_seconds: int) -> LoadMemory:
    """The memory from all windows that were kept."""
    rows = run.bench.rows("SELECT window_end, applied_at FROM inspect.load_runs ORDER BY window_end")
    lives = {
        segment_id: (to_ms(created), None if sealed is None else to_ms(sealed))
        for segment_id, created, sealed in run.bench.rows(
            "SELECT segment_id, created_at, sealed_at FROM inspect.segments"
        )
    }
    layout = run.bench.layout.segments
    origins = origins_of(layout, layout)
    memory = LoadMemory()
    for end, applied in rows:
        window = run.history.read(to_ms(end), to_ms(end)).to_pylist()
        measured = {row["segment_id"]: LoadStats(*(row[metric] for metric in METRICS)) for row in window}
        active = [i for i, (begin, seal) in lives.items() if begin <= to_ms(applied) < (seal or math.inf)]
        heirs = {i: origins[i] for i in active if i in origins}
        memory.remember(to_ms(end), measured, memory_seconds, heirs)
    return memory


@pytest.mark.parametrize("memory_seconds", [2_700, 450, 1_999])
def test_the_rule_of_backtests_remembers_what_is_stored(run: Run, memory_seconds: int) -> None:
    """Split into three, merged, cut anew, split in vain; a sibling that says nothing, a parent whose last traffic comes after
    its end; short and long gaps.
    """
    with run.bench.store.transaction() as tx:
        override = PolicyOverride(profile="adaptive", load_memory_seconds=memory_seconds)
        policies.set_topic(tx, run.topic_id, override, actor="t")
    acts = {
        2: lambda layout, _: plan_split(layout, 0, (0x3000, 0x9000)),
        4: lambda layout, _: plan_split(layout, 2),
        6: lambda layout, _: plan_merge(layout, 1, 4),
        8: lambda layout, _: plan_recut(layout, (5, 3), (0x7000, 0xC000)),
        11: lambda layout, _: plan_split(layout, 7),
        24: lambda layout, _: plan_split(layout, 8, (0x8800,)),
    }
    silent = {5: frozenset({4}), 12: frozenset({10})}
    counted: dict[int, int] = defaultdict(int)
    struck: set[int] = set()
    for index in (*range(1, 10), 11, 12, 13, 24, 25, 26):
        land_minute(run, index, counted, silent.get(index, frozenset()))
        if index in acts:  # after its traffic and before this is counted
            run.bench.reshape(acts[index])
        run.aggregate(minutes=index)
        stored = situation(run)
        memory = recorded(run, memory_seconds)
        known = memory.recent_loads(one.segment_id for one in run.bench.layout.active)

        assert stored.strikes == memory.strikes(known)
        assert stored.recent_loads.keys() == known.keys()
        for segment_id, ticks in stored.recent_loads.items():
            assert len(known[segment_id]) == len(ticks), (index, segment_id)
            for one, other in zip(known[segment_id], ticks, strict=True):
                assert one.rates == pytest.approx(other.rates, rel=1e-12), (index, segment_id)
        struck |= stored.strikes.keys()
    assert struck
