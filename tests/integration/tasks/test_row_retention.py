"""Rows that maintenance deletes: the load of sealed segments, silent sources, old runs and decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.domain.reshape import plan_split
from controller.tasks.row_retention import keep_partitions
from tests.support.aggregation import Run, adaptive_run
from tests.support.bench import Bench

TABLES = ("load_memory", "segment_load", "segment_producers")


@pytest.fixture
def run(bench: Bench, tmp_path: Path) -> Iterator[Run]:
    """A topic of one segment whose profile uses past load."""
    with adaptive_run(bench, tmp_path) as run:
        yield run


def measure(run: Run, index: int, *segment_ids: int) -> None:
    """One minute's traffic of these segments, aggregated; producers of each have been counted."""
    begin = 60 * index - 60
    for segment_id in segment_ids:
        samples = ((at, 10**7 * (index + 2) + 100 * (at - begin)) for at in range(begin, begin + 61, 10))
        run.land(*samples, segment_id=segment_id, source=f"minute-{index}")
        run.bench.execute(
            "INSERT INTO cleave.segment_producers VALUES (:topic, :segment, 1) ON CONFLICT DO NOTHING",
            topic=run.topic_id,
            segment=segment_id,
        )
    run.aggregate(minutes=index)


def test_load_of_a_segment_goes_an_hour_after_its_seal_once_its_children_are_measured(run: Run) -> None:
    def split_and_maintain(segment_id: int) -> None:
        run.bench.reshape(lambda layout, _: plan_split(layout, segment_id))
        run.bench.execute(
            "UPDATE cleave.segment SET sealed_at = sealed_at - interval '61 minutes' WHERE segment_id = 0"
        )
        keep_partitions(dsn=run.bench.url, extras={}, keep_days=90)

    measure(run, 0, 0)
    split_and_maintain(0)
    measure(run, 1, 1, 2)
    inherited = "SELECT segment_id, cardinality(rates) FROM cleave.load_memory ORDER BY segment_id"
    assert run.bench.rows(inherited) == [(0, 4), (1, 8), (2, 8)]

    split_and_maintain(1)
    for table in TABLES:
        kept = run.bench.rows(f"SELECT segment_id FROM cleave.{table} ORDER BY segment_id")
        assert kept == [(0,), (1,), (2,)], table

    measure(run, 2, 3, 4)
    keep_partitions(dsn=run.bench.url, extras={}, keep_days=90)
    for table in TABLES:
        kept = run.bench.rows(f"SELECT segment_id FROM cleave.{table} ORDER BY segment_id")
        assert kept == [(1,), (2,), (3,), (4,)], table


def test_silent_sources_and_old_runs_go_but_for_what_is_in_use(run: Run) -> None:
    """Decisions of the last 30 days are kept in any case, so their runs are as well."""
    measure(run, 0, 0)
    for days in (29, 61):
        run.bench.execute(
            "INSERT INTO cleave.load_source VALUES (:name, clock_timestamp() - :days * interval '1 day')",
            name=f"{days} days",
            days=days,
        )
        run.bench.execute(
            "INSERT INTO cleave.load_run (run_id, window_end, engine, samples, segments, written, outrun, applied_at)"
            " VALUES (:name, '2026-01-01', 'test', 0, 0, 0, 0, clock_timestamp() - :days * interval '1 day')",
            name=f"{days} days",
            days=days,
        )
    run.bench.execute(
        "UPDATE cleave.load_source SET observed_at = '2026-01-01' WHERE source = 'minute-0';"
        "UPDATE cleave.load_run SET run_id = 'watermark', applied_at = '2026-01-01' WHERE engine <> 'test'"
    )

    keep_partitions(dsn=run.bench.url, extras={}, keep_days=30)

    sources = run.bench.rows("SELECT source FROM cleave.load_source ORDER BY 1")
    runs = run.bench.rows("SELECT run_id FROM cleave.load_run ORDER BY 1")
    assert (sources, runs) == ([("29 days",), ("minute-0",)], [("29 days",), ("watermark",)])


def test_a_refusal_whose_row_was_dropped_is_evaluated_again(bench: Bench) -> None:
    """Only on a day that drops rows: otherwise every run would look for the row of each refusal."""
    bench.topic_with(segments=1, subscriptions=())
    lost = "SELECT count(*) FROM cleave.evaluation WHERE outcome_digest IS NULL"
    bench.execute("UPDATE cleave.evaluation SET outcome_digest = 'load=word'")

    keep_partitions(dsn=bench.url, extras={}, keep_days=35)
    assert bench.scalar(lost) == 0

    bench.execute(
        "CREATE TABLE cleave.decision_20260101 PARTITION OF cleave.decision FOR VALUES FROM ('2026-01-01Z') TO ('2026-01-02Z')"
    )
    keep_partitions(dsn=bench.url, extras={}, keep_days=35)
    assert bench.scalar(lost) == 1
