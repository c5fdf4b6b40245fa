"""The aggregation as a job: reads samples and the baseline, writes rates, changes and who was heard.

`run` is what the minute's task calls on its session; `main` is the same for `spark-submit`. Everything goes through
files below one scratch URL, so that the job is the same on a laptop, a Connect server and a cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from controller.domain.load_window import LoadWindow
from spark_jobs.load_aggregation import build_changes, build_heard, build_rates
from spark_jobs.session import get_session

SAMPLES = (
    "topic_id BIGINT, segment_id BIGINT, source STRING, instant TIMESTAMP,"
    " msg_in BIGINT, byte_in BIGINT, msg_out BIGINT, byte_out BIGINT"
)


def run(spark: SparkSession, sample_urls: Sequence[str], scratch_url: str, window: LoadWindow) -> None:
    """Compute one window; the scratch URL holds ``records``, ``sources`` and ``thresholds``."""

    def handed(name: str) -> DataFrame:
        return spark.read.parquet(f"{scratch_url}/{name}")

    samples = spark.read.schema(SAMPLES).parquet(*sample_urls)
    _write(build_rates(samples, window), f"{scratch_url}/rates")
    _write(build_heard(samples, window), f"{scratch_url}/heard")
    changes = build_changes(
        handed("rates"),
        handed("heard"),
        records=handed("records"),
        sources=handed("sources"),
        thresholds=handed("thresholds"),
        window=window,
    )
    _write(changes, f"{scratch_url}/changes")


def _write(frame: DataFrame, url: str) -> None:
    frame.write.mode("overwrite").parquet(url)


def main(arguments: Sequence[str] | None = None) -> None:
    """For ``spark-submit``: the same run with its parts as options."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--master", default="local[2]", help="local[n], spark://host:port or sc://host:port")
    parser.add_argument("--samples", nargs="+", required=True, help="URLs of sample files")
    parser.add_argument("--scratch", required=True, help="URL of the run's scratch directory")
    parser.add_argument("--window-end-ms", type=int, required=True)
    parser.add_argument("--window-length-ms", type=int, default=60_000)
    parser.add_argument("--lookback-ms", type=int, default=60_000)
    options = parser.parse_args(arguments)
    window = LoadWindow(options.window_end_ms, options.window_length_ms, options.lookback_ms)
    run(get_session(options.master), options.samples, options.scratch, window)


if __name__ == "__main__":
    main()
