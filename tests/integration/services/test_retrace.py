"""The memory of loads, computed anew from the recorded windows, is the one that PostgreSQL kept: over any reshapes."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from controller.clock import to_ms
from controller.domain.hash_range import HashRange
from controller.domain.load import METRICS, LoadStats
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import plan_merge, plan_recut, plan_split
from controller.services.retrace.memory import Memories, SegmentLife
from controller.store.decisions.situations import load_situations
from controller.store.postgres.engine import Store
from controller.store.topics import policies
from tests.support.aggregation import Run
from tests.support.bench import Bench


@pytest.fixture
def run(bench: Bench, tmp_path: Path) -> Iterator[Run]:
    """A live topic of one segment that is decided on by `adaptive`."""
    bench.topic_with(segments=1, subscriptions=())
    login = f"loader_{secrets.token_hex(4)}"
    bench.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE cleave_spark_loader")
    store = Store(make_url(bench.url).set(username=login, password="x"), pool_size=2)
    yield Run(bench, store, tmp_path, bench.topic_id)
    store.dispose()
    bench.execute(f"DROP ROLE {login}")


def segments(run: Run) -> dict[int, SegmentLife]:
    rows = run.bench.rows(
        "SELECT segment_id, range_start, range_end, parents, created_at, sealed_at FROM inspect.segments"
    )
    return {
        segment_id: SegmentLife(
            HashRange(start, end), tuple(parents), to_ms(created), None if sealed is None else to_ms(sealed)
        )
        for segment_id, start, end, parents, created, sealed in rows
    }


def land_minute(run: Run, minute: int, counted: dict[int, int], silent: frozenset[int]) -> None:
    """A minute's traffic into the active segments, uneven; the sealed ones are reported as well."""
    begin = 60 * minute - 60
    for id_, segment in run.bench.layout.segments.items():
        if id_ in silent:
            continue
        more = (1_000 + 700 * id_ + 130 * minute) if segment.is_active else 0
        run.land(*((begin + 10 * n, counted[id_] + n * more) for n in range(7)), segment_id=id_)
        counted[id_] += 6 * more


def recorded(run: Run, memory_seconds: int) -> Memories:
    """The memory from all windows that were kept."""
    rows = run.bench.rows("SELECT window_end, applied_at FROM inspect.load_runs ORDER BY window_end")
    memories = Memories(segments(run))
    for end, applied in rows:
        window = run.history.read(to_ms(end), to_ms(end)).to_pylist()
        measured = {row["segment_id"]: _stats(row) for row in window}
        memories.remember(to_ms(end), to_ms(applied), measured, memory_seconds)
    return memories


def _stats(row: dict[str, float]) -> LoadStats:
    return LoadStats(*(row[metric] for metric in METRICS))


@pytest.mark.parametrize("memory_seconds", [2_700, 450])
def test_what_is_remembered_over_reshapes_gaps_and_late_reports(run: Run, memory_seconds: int) -> None:
    """Split into three, merged, cut anew; a sibling that says nothing, a parent whose last traffic comes after its end."""
    with run.bench.store.transaction() as tx:
        override = PolicyOverride(profile="adaptive", load_memory_seconds=memory_seconds)
        policies.set_topic(tx, run.topic_id, override, actor="t")
    acts = {
        2: lambda layout, _: plan_split(layout, 0, (0x3000, 0x9000)),
        4: lambda layout, _: plan_split(layout, 2),
        6: lambda layout, _: plan_merge(layout, 1, 4),
        8: lambda layout, _: plan_recut(layout, (5, 3), (0x7000, 0xC000)),
        11: lambda layout, _: plan_split(layout, 7),
    }
    silent = {5: frozenset({4}), 12: frozenset({9})}
    counted: dict[int, int] = defaultdict(int)
    capabilities = {run.bench.plane.name: run.bench.plane.capabilities}
    for minute in (*range(1, 10), 11, 12, 13, 24, 25):
        land_minute(run, minute, counted, silent.get(minute, frozenset()))
        if minute in acts:  # after its traffic and before this is counted
            run.bench.reshape(acts[minute])
        run.aggregate(minutes=minute)
        with run.bench.store.transaction() as tx:
            stored = load_situations(tx, [run.topic_id], capabilities)[run.topic_id].recent_loads
        known = recorded(run, memory_seconds).recent_loads()

        assert stored.keys() == {one.segment_id for one in run.bench.layout.active} & known.keys()
        for segment_id, ticks in stored.items():
            mine = known[segment_id]
            assert len(mine) == len(ticks), (minute, segment_id)
            for one, other in zip(mine, ticks, strict=True):
                assert one.rates == pytest.approx(other.rates, rel=1e-12), (minute, segment_id)
