"""Measures one run of the aggregation by each of its engines, small to large: the cost of a minute.

A warm Spark Connect server, SQL in PostgreSQL, a session in this process, and spark-submit; each from files and baseline to the changed
records in Arrow. Prints one line of JSON: medians in seconds (of one run where the key says first).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench_spark_vs_duckdb import TICKS, WINDOW, generate
from benchmarks.machine import machine
from controller.devstack.java import java_home
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.spark_connect import SparkConnectServer, spark_home
from controller.landing.schemas import RATE_SCHEMA
from controller.services.load_aggregation.record_changes import record_changes
from controller.store.load import sql_rates
from controller.store.load.records import RECORD_SCHEMA, SOURCE_SCHEMA, THRESHOLD_SCHEMA, Baseline
from controller.store.postgres.engine import Store
from spark_jobs.run_load_aggregation import compute
from spark_jobs.session import get_session, with_session

SIZES = (1_000, 100_000, 1_000_000)
ROOT = Path(__file__).resolve().parents[1]


def prepare(directory: Path, samples: int) -> Baseline:
    """Write the files of one run as the service does, and return its baseline: every topic has thresholds, no segment has a record."""
    segments = samples // TICKS
    directory.mkdir()
    generate(segments, directory / "samples.parquet")
    topics = segments // 16 + 1
    limits = {name: pa.array([1_000.0] * topics) for name in THRESHOLD_SCHEMA.names[1:-1]}
    keys = {"topic_id": pa.array(range(topics), pa.int64()), "strict_pulsar": pa.array([False] * topics)}
    thresholds = pa.table(keys | limits, schema=THRESHOLD_SCHEMA)
    return Baseline(None, RECORD_SCHEMA.empty_table(), SOURCE_SCHEMA.empty_table(), thresholds)


def median_seconds(act: Callable[[], object], runs: int, warm_up: int) -> float:
    """Return the median seconds of `runs` calls after the warm-up calls."""
    taken = []
    for _ in range(warm_up + runs):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken[warm_up:]), 2)


def on_session(master: str, directory: Path, baseline: Baseline) -> None:
    """Run the job on a session, and compute the changed records, as a run of the service does."""
    url = (directory / "samples.parquet").as_uri()
    sources = with_session(master, lambda spark: compute(spark, [url], directory.as_uri(), WINDOW))
    record_changes(pq.read_table(directory / "rates", schema=RATE_SCHEMA), sources, baseline, WINDOW)


def on_sql(store: Store, directory: Path, baseline: Baseline) -> None:
    """Run the job in PostgreSQL, and compute the changed records."""
    batches = pq.ParquetFile(directory / "samples.parquet").iter_batches(columns=list(sql_rates.COLUMNS))
    with store.transaction() as tx:
        rates, sources = sql_rates.aggregate(tx, batches, WINDOW, RATE_SCHEMA)
    record_changes(rates.cast(RATE_SCHEMA), sources, baseline, WINDOW)


def started_anew(command: list[str | Path], directory: Path) -> float:
    """Return the seconds of a new process, including the start of its Spark."""
    parts = ["--samples", (directory / "samples.parquet").as_uri(), "--scratch", directory.as_uri()]
    parts += ["--window-end-ms", str(WINDOW.end_ms), "--master", "local[2]"]
    spark = {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    environment = {**os.environ, **spark, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    subprocess.run([*command, *parts], check=True, env=environment, cwd=directory, capture_output=True)
    return round(time.perf_counter() - began, 2)


def figures(directory: Path, runs: int) -> dict[str, object]:
    """Start a database, a Spark Connect server and separate Spark processes in turn, and return the seconds of a load run on each. Sets
    JAVA_HOME in this process.
    """
    os.environ["JAVA_HOME"] = str(java_home(directory))
    baselines = {size: prepare(directory / str(size), size) for size in SIZES}
    sql: dict[str, float] = {}
    with EmbeddedPostgres(directory / "postgres", settings=DURABLE) as server:
        store = Store(server.create_database("sql"), pool_size=1)
        for size, baseline in baselines.items():
            sql[str(size)] = median_seconds(partial(on_sql, store, directory / str(size), baseline), runs, 1)
        store.dispose()
    connect: dict[str, float] = {}
    with SparkConnectServer(directory / "connect", driver_memory="1g") as spark:
        first = median_seconds(
            partial(on_session, spark.url, directory / str(SIZES[0]), baselines[SIZES[0]]), 1, 0
        )
        for size in SIZES:
            connect[str(size)] = median_seconds(
                partial(on_session, spark.url, directory / str(size), baselines[size]),
                runs,
                5,
            )
        get_session(spark.url).stop()
    small = directory / str(SIZES[0])
    job = ROOT / "spark_jobs" / "run_load_aggregation.py"
    return {
        "connect_first_seconds": first,
        "connect_warm_seconds": connect,
        "sql_twin_seconds": sql,
        "own_session_first_seconds": started_anew([sys.executable, job], small),
        "spark_submit_first_seconds": started_anew([spark_home() / "bin" / "spark-submit", job], small),
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="measured runs of each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        document = figures(Path(directory), options.runs)
    print(json.dumps({"benchmark": "load_run", "runs": options.runs, **document, "machine": machine()}))


if __name__ == "__main__":
    main()
