"""The aggregation as a job: reads samples, writes rates, and returns the sources that reported.

The task that runs every minute calls `compute` on its session; `main` is the entry point for `spark-submit`. Files
are exchanged below one scratch URL with explicit schemas, so that no Spark job is needed to infer them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from controller.domain.load_window import LoadWindow
from spark_jobs.load_aggregation import SOUND, build_heard, build_rates, build_sketches
from spark_jobs.session import frame_of, with_session

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLES = (
    "topic_id BIGINT, segment_id BIGINT, source STRING, reader STRING, instant TIMESTAMP,"
    " msg_in BIGINT, byte_in BIGINT, msg_out BIGINT, byte_out BIGINT"
)
KEY_COUNTS = "topic_id BIGINT, segment_id BIGINT, source STRING, instant TIMESTAMP, producers BIGINT, bins ARRAY<BIGINT>"


def compute(
    spark: SparkSession, sample_urls: Sequence[str], scratch_url: str, window: LoadWindow
) -> pa.Table:
    """Write the rates of the window as `rates` below the scratch URL, and replace earlier rates there. Return the
    sources that reported in the window, with the columns of `build_heard`. `sample_urls` are the sample files; there
    must be at least one.

    A row of the files with a missing value is ignored. A row that is not SOUND, because of an impossible counter or a
    name that cannot be stored, adds to no rate and is counted for its source. Spark's errors are raised unchanged.
    """
    samples = spark.read.schema(SAMPLES).parquet(*sample_urls).na.drop()
    build_rates(samples.where(SOUND), window).write.mode("overwrite").parquet(f"{scratch_url}/rates")
    return build_heard(samples, window).toArrow()


def add_up(spark: SparkSession, count_urls: Sequence[str], since_ms: int, until_ms: int) -> pa.Table:
    """Return the key histograms of segments from the landed key counts with instants in (since, until], in milliseconds since the Unix
    epoch, with the columns of `build_sketches`. A row with a missing value is ignored. `count_urls` must not be empty.
    """
    counts = spark.read.schema(KEY_COUNTS).parquet(*count_urls).na.drop()
    return build_sketches(counts, since_ms, until_ms).toArrow()


def main(arguments: Sequence[str] | None = None) -> None:
    """Aggregate samples with `spark-submit`: the same run with its inputs as options; `heard` and `sketches` are written
    to files as well.
    """
    parser = argparse.ArgumentParser(
        prog="run_load_aggregation", description=main.__doc__, fromfile_prefix_chars="@"
    )
    parser.add_argument("--master", default="local[2]", help="local[n], spark://host:port or sc://host:port")
    parser.add_argument("--samples", nargs="+", required=True, help="URLs of sample files")
    parser.add_argument("--scratch", required=True, help="URL of the run's scratch directory")
    parser.add_argument("--window-end-ms", type=int, required=True)
    parser.add_argument("--window-length-ms", type=int, default=60_000)
    parser.add_argument("--lookback-ms", type=int, default=60_000)
    parser.add_argument("--key-counts", nargs="+", default=[], help="URLs of files with key counts")
    parser.add_argument(
        "--counted-since-ms",
        type=int,
        help="window end of the last run, in milliseconds; later counts belong to this run",
    )
    options = parser.parse_args(arguments)
    if options.key_counts and options.counted_since_ms is None:
        parser.error(
            "--key-counts needs --counted-since-ms, because each count belongs to one run; give both"
        )
    window = LoadWindow(options.window_end_ms, options.window_length_ms, options.lookback_ms)

    def run(spark: SparkSession) -> None:
        sources = compute(spark, options.samples, options.scratch, window)
        frame_of(spark, sources).write.mode("overwrite").parquet(f"{options.scratch}/heard")
        if options.key_counts:
            sketches = add_up(spark, options.key_counts, options.counted_since_ms, window.end_ms)
            frame_of(spark, sketches).write.mode("overwrite").parquet(f"{options.scratch}/sketches")

    with_session(options.master, run)


if __name__ == "__main__":
    main()
