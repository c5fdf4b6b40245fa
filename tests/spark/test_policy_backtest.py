"""The backtest on Spark: the very figures of this process, from files and from the history that the aggregation keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from controller.domain.policy import AutoScalePolicy
from controller.landing.history import RateHistory
from spark_jobs.policy_backtest import (
    IN_FORCE,
    Candidate,
    Question,
    compute,
    compute_here,
    main,
    rates_of_history,
)
from spark_jobs.recorded_load import RATE_COLUMNS, Recording
from tests.support.recorded import keep_rates
from tests.support.spark_session import MASTER

START = 1_763_812_800_000
MINUTES = 90
QUESTION = Question(
    (Candidate("own", IN_FORCE), Candidate("crowded", "pip483", {"max_segments": 3})),
    seeds=(0, 1),
    pictures=True,
)
HALVES = {0: "0000-7fff", 1: "8000-ffff"}


def recordings(count: int) -> list[Recording]:
    policy = AutoScalePolicy().to_document()
    end_ms = START + MINUTES * 60_000
    return [
        Recording(key, f"topic-{key:03}", START, end_ms, policy, segments=2, ranges=HALVES)
        for key in range(1, count + 1)
    ]


def rate(key: int, segment_id: int, minute: int) -> float:
    """Different for each topic, and uneven between its segments."""
    return 6_000.0 + 500.0 * key * (1 + segment_id) * (1 + np.sin(minute / 10 + key))


def rates(count: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "key": key,
                "window_end_ms": START + minute * 60_000,
                "segment_id": segment_id,
                "msg_rate_in": rate(key, segment_id, minute),
                "byte_rate_in": 0.0,
                "msg_rate_out": 0.0,
                "byte_rate_out": 0.0,
            }
            for key in range(1, count + 1)
            for minute in range(1, MINUTES + 1)
            for segment_id in HALVES
        ],
        RATE_COLUMNS,
    )


def on_spark(spark: SparkSession, count: int, tmp_path: Path, parallel: int) -> pa.Table:
    pq.write_table(rates(count), tmp_path / "rates.parquet")
    stored = spark.read.parquet((tmp_path / "rates.parquet").as_uri())
    return compute(spark, stored, recordings(count), QUESTION, parallel)


@pytest.mark.parametrize(("count", "parallel"), [(1, 4), (9, 2)], ids=["one load divided", "many loads"])
def test_the_figures_are_those_of_this_process(
    spark: SparkSession, tmp_path: Path, count: int, parallel: int
) -> None:
    here = compute_here(rates(count), recordings(count), QUESTION)
    there = on_spark(spark, count, tmp_path, parallel)

    assert here.num_rows == count * 4
    plain = [name for name in here.column_names if name != "picture"]
    assert there.select(plain).equals(here.select(plain))


def test_the_history_of_the_aggregation_is_read_as_it_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Windows beyond the span and topics that were not asked about are left out."""
    history = RateHistory(str(tmp_path / "history"))
    for minute in range(MINUTES + 2):
        window = {(key, s): rate(key, s, minute) for key in (1, 2, 3) for s in HALVES}
        keep_rates(history, START + minute * 60_000, window)
    days = [history.location.url(day) for day in history.location.directories() if day.startswith("day=")]
    found = rates_of_history(spark, history.location.url(), days, START + 60_000, START + MINUTES * 60_000)

    there = compute(spark, found, recordings(2), QUESTION, 2)

    plain = [name for name in there.column_names if name != "picture"]
    here = compute_here(rates(2), recordings(2), QUESTION)
    assert there.select(plain).equals(here.select(plain))


def test_submitted_as_a_job_it_writes_its_results(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(rates(2), tmp_path / "rates.parquet")
    (tmp_path / "recordings").write_text("\n".join(one.to_json() for one in recordings(2)))
    (tmp_path / "question").write_text(QUESTION.to_json())
    options = {
        "--master": MASTER,
        "--rates": (tmp_path / "rates.parquet").as_uri(),
        "--recordings": str(tmp_path / "recordings"),
        "--question": str(tmp_path / "question"),
        "--results": str(tmp_path / "results.parquet"),
    }

    main([word for pair in options.items() for word in pair])

    plain = ["load", "policy", "seed", "cost", "least_cost", "figures"]
    here = compute_here(rates(2), recordings(2), QUESTION)
    assert pq.read_table(tmp_path / "results.parquet").select(plain).equals(here.select(plain))
