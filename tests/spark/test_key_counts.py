"""What producers counted is added up on Spark as in PostgreSQL: over workers, and by the instants of the run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from controller.landing.schemas import KEY_COUNT_SCHEMA
from controller.store.load import sql_rates
from controller.store.load.records import SKETCH_SCHEMA
from spark_jobs.run_load_aggregation import add_up
from tests.support.bench import Bench

SINCE, UNTIL = 1_800_000_000_000, 1_800_000_060_000


def counts(seed: int) -> pa.Table:
    """Some segments of two topics, told by three workers at instants about the bounds of the run."""
    random = Random(seed)
    instants = (SINCE - 1, SINCE, SINCE + 1, SINCE + 30_000, UNTIL, UNTIL + 1)
    rows = [
        {
            "topic_id": random.choice((1, 2)),
            "segment_id": segment_id,
            "source": f"worker-{random.randrange(3)}",
            "instant": random.choice(instants) * 1000,
            "producers": random.randrange(1, 4),
            "bins": [
                random.randrange(3) * 10 ** random.randrange(9) for _ in range(8 if segment_id else 1024)
            ],
        }
        for segment_id in (0, 1, 2)
        for _ in range(random.randrange(1, 12))
    ]
    return pa.table({name: [row[name] for row in rows] for name in KEY_COUNT_SCHEMA.names}).cast(
        KEY_COUNT_SCHEMA
    )


def expected(table: pa.Table) -> dict[tuple[int, int], tuple[int, int, list[int]]]:
    """Producers, messages and bins of each segment, by hand."""
    bins: dict[tuple[int, int], list[int]] = {}
    tellers: dict[tuple[int, int], dict[str, int]] = {}
    for row in table.to_pylist():
        at_ms = row["instant"].timestamp() * 1000
        key = row["topic_id"], row["segment_id"]
        if SINCE < at_ms <= UNTIL:
            before = bins.get(key, [0] * len(row["bins"]))
            bins[key] = [one + other for one, other in zip(before, row["bins"], strict=True)]
            told = tellers.setdefault(key, {})
            told[row["source"]] = max(told.get(row["source"], 0), row["producers"])
    return {key: (sum(tellers[key].values()), sum(found), found) for key, found in bins.items()}


def seen(table: pa.Table) -> dict[tuple[int, int], tuple[int, int, list[int]]]:
    rows = table.select(SKETCH_SCHEMA.names).cast(SKETCH_SCHEMA).to_pylist()
    return {
        (row["topic_id"], row["segment_id"]): (row["producers"], row["messages"], row["bins"]) for row in rows
    }


@pytest.mark.parametrize("seed", range(4))
def test_both_engines_add_up_the_same(spark: SparkSession, database: str, tmp_path: Path, seed: int) -> None:
    table = counts(seed)
    pq.write_table(table, tmp_path / "counts.parquet")
    bench = Bench(database)
    with bench.store.transaction() as tx:
        by_sql = sql_rates.sum_key_counts(tx, table.to_batches(), SINCE, UNTIL)
    bench.close()

    by_spark = add_up(spark, [(tmp_path / "counts.parquet").as_uri()], SINCE, UNTIL)

    assert seen(by_sql) == seen(by_spark) == expected(table)
