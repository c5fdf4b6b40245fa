"""Measures the expensive half of the aggregation, counter samples to rates, on Spark and on DuckDB over the same Parquet file.

Both read the file, count equal instants once, find intervals, restarts and overlaps, sum, and write Parquet. Runs alternate, so that both
have the same conditions; the first of each is warm-up. Prints one line of JSON: medians of wall and processor seconds, DuckDB's divided
by Spark's (goal: 0.4), and the JVM's peak memory on a tenth of the samples and on all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import psutil
from pyspark.sql import SparkSession

from benchmarks.machine import machine
from benchmarks.operation_costs import processor_seconds
from controller.devstack.java import java_home
from controller.domain.load_window import LoadWindow
from spark_jobs.load_aggregation import build_rates
from spark_jobs.run_load_aggregation import SAMPLES
from spark_jobs.session import get_session

WINDOW = LoadWindow(end_ms=1_795_168_921_000)
TICKS = 13  # of ten seconds: the window, what is read before it, and one more
GOAL = 0.4

GENERATE = """
COPY (SELECT s // 16 AS topic_id, s % 16 AS segment_id, 'topic-' || s // 16 || '-' || s % 16 AS backing_topic,
             'broker-' || (s // 16) % 200 AS source, 'collector' AS reader, make_timestamptz(($end_ms - $ticks * 10000 + t * 10000 + s % 997) * 1000) AS instant,
             1000000 + t * (s % 5000) * 10 AS msg_in, 1000000 + t * (s % 5000) * 10240 AS byte_in,
             1000000 + t * (s % 5000) * 20 AS msg_out, 1000000 + t * (s % 5000) * 20480 AS byte_out
        FROM range(1, $ticks + 1) AS ticks(t), range($segments) AS segments(s) ORDER BY t, s)
  TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 1000000)"""

TWIN = """
COPY (
WITH sample AS (
  SELECT topic_id, segment_id, reader, source, epoch_ms(instant) AS instant_ms,
         max(msg_in) AS msg_in, max(byte_in) AS byte_in, max(msg_out) AS msg_out, max(byte_out) AS byte_out
    FROM read_parquet('{samples}')
   WHERE instant >= make_timestamptz(($read_from_ms + 1) * 1000) AND instant < make_timestamptz(($end_ms + 1) * 1000)
   GROUP BY ALL
), pair AS (
  SELECT *, lag(instant_ms) OVER by_time AS before_ms, msg_in - lag(msg_in) OVER by_time AS msg_in_more,
         byte_in - lag(byte_in) OVER by_time AS byte_in_more, msg_out - lag(msg_out) OVER by_time AS msg_out_more,
         byte_out - lag(byte_out) OVER by_time AS byte_out_more
    FROM sample WINDOW by_time AS (PARTITION BY topic_id, segment_id, reader, source ORDER BY instant_ms)
), judged AS (
  SELECT *, least(msg_in_more, byte_in_more, msg_out_more, byte_out_more) >= 0
         AND msg_in_more // 10 >= -least(0, lag(msg_in_more) OVER by_time, lead(msg_in_more) OVER by_time)
         AND byte_in_more // 10 >= -least(0, lag(byte_in_more) OVER by_time, lead(byte_in_more) OVER by_time)
         AND msg_out_more // 10 >= -least(0, lag(msg_out_more) OVER by_time, lead(msg_out_more) OVER by_time)
         AND byte_out_more // 10 >= -least(0, lag(byte_out_more) OVER by_time, lead(byte_out_more) OVER by_time) AS counts
    FROM pair WINDOW by_time AS (PARTITION BY topic_id, segment_id, reader, source ORDER BY instant_ms)
), part AS (
  SELECT *, instant_ms - greatest(before_ms, $start_ms) AS overlap_ms, overlap_ms / (instant_ms - before_ms) AS share
    FROM judged WHERE before_ms IS NOT NULL AND instant_ms > $start_ms AND counts
), by_reader AS (
  SELECT topic_id, segment_id, reader, least(sum(overlap_ms), $length_ms) AS covered_ms, max(instant_ms) AS observed_at_ms,
         sum(msg_in_more * share) AS msg_in, sum(byte_in_more * share) AS byte_in,
         sum(msg_out_more * share) AS msg_out, sum(byte_out_more * share) AS byte_out,
         arg_max(source, instant_ms) AS source
    FROM part GROUP BY topic_id, segment_id, reader
), total AS (
  SELECT unnest(max(struct_pack(covered_ms, observed_at_ms, reader, msg_in, byte_in, msg_out, byte_out, source))), topic_id, segment_id
    FROM by_reader GROUP BY topic_id, segment_id
)
SELECT topic_id, segment_id, msg_in * 1000 / covered_ms AS msg_rate_in, byte_in * 1000 / covered_ms AS byte_rate_in,
       msg_out * 1000 / covered_ms AS msg_rate_out, byte_out * 1000 / covered_ms AS byte_rate_out,
       observed_at_ms, covered_ms, source
  FROM total) TO '{rates}' (FORMAT parquet)"""

DIFFERENT = """
SELECT count(*) FROM read_parquet('{spark}/*.parquet') a FULL JOIN read_parquet('{duckdb}') b USING (topic_id, segment_id)
 WHERE a.source IS DISTINCT FROM b.source OR a.covered_ms IS DISTINCT FROM b.covered_ms OR a.observed_at_ms <> b.observed_at_ms
    OR abs(a.msg_rate_in - b.msg_rate_in) > 1e-9 * b.msg_rate_in OR abs(a.byte_rate_out - b.byte_rate_out) > 1e-9 * b.byte_rate_out"""

Cost = tuple[float, float]


def generate(segments: int, path: Path) -> None:
    """Write a file of TICKS samples for each segment, in the order in which they would have landed."""
    values = {"end_ms": WINDOW.end_ms, "ticks": TICKS, "segments": segments}
    duckdb.connect().execute(GENERATE.format(path=path), values)


def measured(act: Callable[[], object]) -> Cost:
    """Return the wall and processor seconds of one call."""
    wall, processor = time.perf_counter(), processor_seconds(psutil.Process())
    act()
    return time.perf_counter() - wall, processor_seconds(psutil.Process()) - processor


def jvm_peak_mib() -> int:
    """Return the peak resident memory of the JVM so far, in MiB."""
    for process in psutil.Process().children(recursive=True):
        status = Path(f"/proc/{process.pid}/status")
        if process.name() == "java" and status.exists():
            peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
            return int(peak.split()[1]) // 1024
    return 0


def on_spark(spark: SparkSession, samples: Path, rates: Path) -> None:
    """Run the job's own query."""
    read = spark.read.schema(SAMPLES).parquet(samples.as_uri())
    build_rates(read, WINDOW).write.mode("overwrite").parquet(rates.as_uri())


def on_duckdb(database: duckdb.DuckDBPyConnection, samples: Path, rates: Path) -> None:
    """Run the same query in DuckDB's dialect."""
    values = {
        "read_from_ms": WINDOW.read_from_ms,
        "start_ms": WINDOW.start_ms,
        "end_ms": WINDOW.end_ms,
        "length_ms": WINDOW.length_ms,
    }
    database.execute(TWIN.format(samples=samples, rates=rates), values)


def compare(directory: Path, samples: int, runs: int, heap: str) -> dict[str, object]:
    """Run both engines in turns and return all figures. Raises AssertionError if their rates differ."""
    segments = samples // TICKS
    whole, tenth = directory / "samples.parquet", directory / "tenth.parquet"
    generate(segments, whole)
    generate(segments // 10, tenth)
    database = duckdb.connect()
    database.execute(f"SET temp_directory = '{directory}/duckdb'")
    spark = get_session(
        f"local[{os.cpu_count()}]",
        {"spark.driver.memory": heap, "spark.local.dir": str(directory), "spark.log.level": "ERROR"},
    )
    rates = {name: directory / f"rates-{name}" for name in ("spark", "duckdb")}
    for _ in range(2):
        on_spark(spark, tenth, rates["spark"])
    peak_of_tenth = jvm_peak_mib()
    taken: dict[str, list[Cost]] = {"spark": [], "duckdb": []}
    for _ in range(1 + runs):
        taken["spark"].append(measured(lambda: on_spark(spark, whole, rates["spark"])))
        taken["duckdb"].append(measured(lambda: on_duckdb(database, whole, rates["duckdb"])))
    different = database.execute(DIFFERENT.format(**rates)).fetchone()
    assert different == (0,), f"{different} segments differ"
    median = {
        name: [statistics.median(cost[kind] for cost in costs[1:]) for kind in (0, 1)]
        for name, costs in taken.items()
    }
    return {
        "samples": segments * TICKS,
        "segments": segments,
        "runs": runs,
        "spark": {
            "wall_seconds": round(median["spark"][0], 2),
            "processor_seconds": round(median["spark"][1], 2),
        },
        "duckdb": {
            "wall_seconds": round(median["duckdb"][0], 2),
            "processor_seconds": round(median["duckdb"][1], 2),
        },
        "spark_speed_of_duckdb": round(median["duckdb"][0] / median["spark"][0], 3),
        "spark_speed_of_duckdb_by_processor": round(median["duckdb"][1] / median["spark"][1], 3),
        "goal": GOAL,
        "jvm_heap_limit": heap,
        "jvm_peak_mib": {"tenth": peak_of_tenth, "all": jvm_peak_mib()},
    }


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000_000)
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each, after one to warm up")
    parser.add_argument("--heap", default="2g", help="the JVM's limit, such as 2g")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("JAVA_HOME", str(java_home(Path(directory))))
        figures = compare(Path(directory), options.samples, options.runs, options.heap)
    print(json.dumps({"benchmark": "spark_vs_duckdb", **figures, "machine": machine()}))


if __name__ == "__main__":
    main()
