"""Measures one run of bundle load on Spark: topics of many brokers in many bundles, from landed files to the rows to write.

The topics of the fleet are spread by their hashes over namespaces of equal bundles, and each topic is reported by its bundle's broker. A
cold store (everything is new) and a warm one (a twentieth of the topics changed) are measured on a session that has run before, as the
task of every minute finds it. The merge into PostgreSQL is measured separately. Prints one line of JSON: wall seconds, rows, and the
JVM's peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.bench_spark_vs_duckdb import jvm_peak_mib
from benchmarks.machine import machine
from controller.bundles.broker_reports import REPORT_SCHEMAS
from controller.bundles.store import loads as bundle_loads
from controller.bundles.store.loads import BASELINE_SCHEMAS, BundleRun
from controller.devstack.java import java_home
from controller.devstack.postgres import EmbeddedPostgres
from controller.store.postgres.engine import Store
from controller.store.postgres.migrations import migrate
from spark_jobs.bundle_figures import ReportWindow
from spark_jobs.run_bundle_load import compute
from spark_jobs.session import get_session

CLUSTER = "c"
BROKERS = 100
BUNDLES_EACH = 100
SECONDS_GOAL = 30.0
"""Half of the minute between two runs."""

BOUNDARIES = """
COPY (SELECT 'c' AS cluster, 't/n' || n AS namespace, CAST($at AS BIGINT) AS instant_ms,
             list_concat([CAST(b * (4294967296 // $each) AS BIGINT) FOR b IN range($each)], [4294967295]) AS boundaries
        FROM range($namespaces) AS r(n)) TO '{path}' (FORMAT parquet)"""

TOPICS = """
COPY (SELECT 'c' AS cluster, 'b' || (s % $brokers) AS broker, CAST($at AS BIGINT) AS instant_ms, 't/n' || (s % $namespaces) AS namespace,
             'persistent://t/n' || (s % $namespaces) || '/topic-' || s AS topic,
             random() * 10 AS msg_rate_in, random() * 1e4 AS byte_rate_in, random() * 10 AS msg_rate_out, random() * 1e4 AS byte_rate_out,
             CAST(1 AS BIGINT) AS producer_count, CAST(2 AS BIGINT) AS consumer_count
        FROM range($topics) AS r(s)) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 1000000)"""

CHANGED = """
COPY (SELECT * REPLACE (instant_ms + 60000 AS instant_ms, if(namespace = 't/n0' OR random() < 0.0005, msg_rate_in + 1, msg_rate_in) AS msg_rate_in)
        FROM read_parquet('{before}')) TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 1000000)"""

OWNED = """
COPY (SELECT cluster, 'b' || (row_number() OVER () % $brokers) AS broker, CAST($at AS BIGINT) AS instant_ms, namespace,
             CAST(e * (4294967296 // $each) AS BIGINT) AS lower_bound,
             CAST(if(e = $each - 1, 4294967295, (e + 1) * (4294967296 // $each)) AS BIGINT) AS upper_bound, CAST(0 AS BIGINT) AS cache_size_bytes
        FROM read_parquet('{boundaries}'), range($each) AS r(e)) TO '{path}' (FORMAT parquet)"""


class Fleet:
    """Files of one tick and of the next one, in which few topics changed."""

    def __init__(self, directory: Path, topics: int, bundles: int, at: int) -> None:
        self.at, self._directory = at, directory
        self._values = {
            "brokers": BROKERS,
            "namespaces": bundles // BUNDLES_EACH,
            "topics": topics,
            "each": BUNDLES_EACH,
        }
        self._write("boundaries", "boundaries", BOUNDARIES, at)
        self._write("topics", "topics-0", TOPICS, at)
        self._write("topics", "topics-1", CHANGED, at, before=directory / "topics-0.parquet")
        for tick in (0, 1):
            instant = at + tick * 60_000
            self._write("owned", f"owned-{tick}", OWNED, instant, boundaries=directory / "boundaries.parquet")
            self._brokers(tick, instant)

    def urls(self, tick: int) -> dict[str, list[str]]:
        names = {"boundaries": "boundaries"} | {
            kind: f"{kind}-{tick}" for kind in ("topics", "owned", "brokers")
        }
        return {kind: [(self._directory / f"{name}.parquet").as_uri()] for kind, name in names.items()}

    def _write(self, kind: str, name: str, statement: str, at: int, **paths: Path) -> None:
        path = self._directory / f"{name}.parquet"
        text = statement.format(path=path, **paths)
        values = {key: value for key, value in (self._values | {"at": at}).items() if f"${key}" in text}
        database = duckdb.connect()
        database.execute("SELECT setseed(0.5)")
        database.execute(text, values)
        schema = REPORT_SCHEMAS[kind]
        written_schema = pq.read_schema(path)
        assert set(written_schema.names) == set(schema.names), (kind, written_schema.names)

    def _brokers(self, tick: int, at: int) -> None:
        counts = duckdb.connect().execute(
            f"SELECT broker, count(*) FROM read_parquet('{self._directory}/topics-{tick}.parquet') GROUP BY 1"  # noqa: S608
        )
        rows = []
        for broker, count in counts.fetchall():
            row: dict[str, object] = {
                f.name: 50.0 for f in REPORT_SCHEMAS["brokers"] if f.type == pa.float64()
            }
            rows.append(
                row
                | {
                    "cluster": CLUSTER,
                    "broker": broker,
                    "instant_ms": at,
                    "topic_count": count,
                    "report": "load-report",
                    "version": "v",
                }
            )
        pq.write_table(
            pa.Table.from_pylist(rows, REPORT_SCHEMAS["brokers"]), self._directory / f"brokers-{tick}.parquet"
        )


def run(spark: SparkSession, store: Store, scratch: Path, fleet: Fleet, tick: int) -> dict[str, float]:
    """Aggregate tick 0 (cold) or 1 (warm) of the fleet, with the merge. Return the seconds of Spark and of the merge, and the numbers of
    rows.

    Creates `scratch` and leaves the intermediate files in it.
    """
    scratch.mkdir()
    with store.transaction() as tx:
        baseline = bundle_loads.baseline(tx)
    limits = pa.table({"cluster": pa.array([], pa.string()), "namespace": pa.array([], pa.string())})
    for name in ("max_topics", "max_sessions", "max_msg_rate", "max_byte_rate"):
        limits = limits.append_column(name, pa.array([], pa.float64()))
    for name, table in {**{n: baseline[n] for n in BASELINE_SCHEMAS}, "limits": limits}.items():
        (scratch / name).mkdir()
        pq.write_table(table, scratch / name / "part-0.parquet")
    end = fleet.at + tick * 60_000 + 1_000
    began = time.perf_counter()
    changes = compute(spark, fleet.urls(tick), scratch.as_uri(), ReportWindow(end))
    computed = time.perf_counter()
    with store.transaction() as tx:
        run_of = BundleRun(scratch.name, datetime.fromtimestamp(end / 1000, UTC), "spark", 0)
        merged = bundle_loads.stage_and_merge(tx, run_of, changes)
    return {
        "spark_seconds": computed - began,
        "merge_seconds": time.perf_counter() - computed,
        "bundles_written": changes["bundles"].num_rows,
        "rows_written": merged.written,
    }


def measure(directory: Path, topics: int, bundles: int, runs: int, heap: str) -> dict[str, object]:
    """Return the medians of `runs` cold and warm runs, after a small warm-up run. Each run has an empty database."""
    fleet = Fleet(directory, topics, bundles, 1_795_168_860_000)
    (directory / "small").mkdir()
    warm_up = Fleet(directory / "small", 10_000, 1_000, 1_795_168_860_000)
    spark = get_session(
        f"local[{os.cpu_count()}]",
        {"spark.driver.memory": heap, "spark.local.dir": str(directory), "spark.log.level": "ERROR"},
    )
    server = EmbeddedPostgres(directory / "postgres")
    server.start()
    try:
        taken: list[tuple[dict[str, float], dict[str, float]]] = []
        for number, each in enumerate([warm_up, *[fleet] * runs]):
            url = server.create_database(f"bench_{number}")
            migrate(url)
            store = Store(url)
            cold, warm = (
                run(spark, store, directory / f"run-{number}-{tick}", each, tick) for tick in (0, 1)
            )
            store.dispose()
            taken.append((cold, warm))
    finally:
        server.destroy()
    kinds = {
        kind: {
            name: round(statistics.median(times[place][name] for times in taken[1:]), 2)
            for name in taken[1][place]
        }
        for place, kind in enumerate(("cold", "warm"))
    }
    return {
        "topics": topics,
        "bundles": bundles,
        "brokers": BROKERS,
        "runs": runs,
        **kinds,
        "goal_seconds": SECONDS_GOAL,
        "jvm_heap_limit": heap,
        "jvm_peak_mib": jvm_peak_mib(),
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--bundles", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3, help="measured runs, after a small one to warm up")
    parser.add_argument("--heap", default="2g", help="the JVM's limit, such as 2g")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("JAVA_HOME", str(java_home(Path(directory))))
        figures = measure(Path(directory), options.topics, options.bundles, options.runs, options.heap)
    print(json.dumps({"benchmark": "bundle_load", **figures, "machine": machine()}))


if __name__ == "__main__":
    main()
