"""The aggregation on Spark: in this process, on a cluster, or on a Connect server, depending on the master.

This is the only module of the aggregation that knows the Spark jobs. They are imported when a run begins, so
that all other functions work without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from controller.domain.load_window import LoadWindow
from controller.landing.scratch import Scratch
from controller.services.load_aggregation.engine import Landed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEngine:
    """Computes a run in the session for `master` with Spark's settings `conf` (`spark_jobs.session`)."""

    name = "spark"

    def __init__(self, master: str, conf: Mapping[str, str] | None = None) -> None:
        self._master, self._conf = master, conf

    def compute(self, landed: Landed, scratch: Scratch, window: LoadWindow) -> None:
        """Compute the rates of the window from the landed files, and write the results to the scratch directory.
        Spark's executors write the rates (`rates`). This process writes the last samples of the sources (`heard`)
        and, if the run has key counts, their sums (`sketches`). Raises Retryable if Spark is unavailable, Terminal if
        Spark can never compute this run, Spark's errors, and the errors of the storage. After an error the directory
        may have a part of the results.
        """
        from spark_jobs.run_load_aggregation import add_up, compute
        from spark_jobs.session import with_session

        def run(spark: SparkSession) -> None:
            scratch.write("heard", compute(spark, landed.area.urls(landed.files), scratch.url, window))
            if (key_counts := landed.counted) is not None:
                urls = key_counts.area.urls(key_counts.files)
                scratch.write("sketches", add_up(spark, urls, key_counts.since_ms, key_counts.until_ms))

        with_session(self._master, run, self._conf)
