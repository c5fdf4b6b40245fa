"""Bundle load as a job: reads landed reports and the stored figures, and returns the changes.

The task that runs every minute calls `compute` on its session; `main` is the entry point for `spark-submit`.
`bundle_figures` computes the figures of every bundle and the changes to write. Files are exchanged
below one scratch URL with explicit schemas, so that no Spark job is needed to infer them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.bundle_figures import (
    COUNTS,
    RATES,
    SIGNALS,
    SOUND_BOUNDARIES,
    SOUND_OWNED,
    SOUND_TOPIC,
    ReportWindow,
    build,
    build_brokers,
    build_clusters,
    build_hot_topics,
    build_judged,
    build_namespace_sums,
    build_namespaces,
    build_reports,
    build_unsound_boundaries,
)
from spark_jobs.session import frame_of, with_session

if TYPE_CHECKING:
    import pyarrow as pa

_RATES = ", ".join(f"{rate} DOUBLE" for rate in RATES)
_USAGES = ", ".join(f"{signal}_{part} DOUBLE" for signal in SIGNALS for part in ("usage", "limit"))
_COUNTS = ", ".join(f"{count} BIGINT" for count in COUNTS)
_WHERE = "cluster STRING, broker STRING, instant_ms BIGINT"
_RANGE = "namespace STRING, lower_bound BIGINT, upper_bound BIGINT"

REPORTS = {
    "topics": f"{_WHERE}, namespace STRING, topic STRING, {_RATES}, producer_count BIGINT, consumer_count BIGINT",
    "owned": f"{_WHERE}, {_RANGE}, cache_size_bytes BIGINT",
    "boundaries": "cluster STRING, namespace STRING, instant_ms BIGINT, boundaries ARRAY<BIGINT>",
    "brokers": f"{_WHERE}, {_USAGES}, topic_count BIGINT, report STRING, version STRING",
}
"""Schemas of the landed reports, by kind."""

BASELINE = {
    "stored_boundaries": "cluster STRING, namespace STRING, boundaries ARRAY<BIGINT>, boundaries_at_ms BIGINT,"
    " row_version BIGINT",
    "stored_bundles": f"cluster STRING, {_RANGE}, broker STRING, {_RATES}, {_COUNTS}, cache_size_bytes BIGINT,"
    " modified_at_ms BIGINT, row_version BIGINT",
    "stored_namespaces": f"cluster STRING, namespace STRING, {_RATES}, topic_count BIGINT, bundle_count BIGINT,"
    " peak_msg_rate DOUBLE, peak_byte_rate DOUBLE, peak_topic_count BIGINT, modified_at_ms BIGINT, row_version BIGINT",
    "stored_brokers": f"cluster STRING, broker STRING, {_USAGES}, {_RATES}, topic_count BIGINT, bundle_count BIGINT,"
    " producer_count BIGINT, consumer_count BIGINT, report STRING, version STRING, observed_at_ms BIGINT,"
    " row_version BIGINT",
    "limits": "cluster STRING, namespace STRING, max_topics DOUBLE, max_sessions DOUBLE, max_msg_rate DOUBLE,"
    " max_byte_rate DOUBLE",
}
"""Schemas of the inputs in the scratch directory: stored load and boundaries, and split limits in force."""

_JUDGED = (
    f"cluster STRING, {_RANGE}, broker STRING, {_RATES}, {_COUNTS}, cache_size_bytes BIGINT, modified_at_ms BIGINT,"
    " seen_row_version BIGINT, seen_namespace_version BIGINT, gone BOOLEAN, is_changed BOOLEAN"
)


def compute(
    spark: SparkSession, report_urls: Mapping[str, Sequence[str]], scratch_url: str, window: ReportWindow
) -> dict[str, pa.Table]:
    """Compute bundle load for one window. Return the rows to write, as tables by name; nothing is written to the
    database.

    `boundaries`, `bundles` and `namespaces` have the rows that differ from the stored rows. `brokers` has the brokers
    whose report is later than the stored report, and the brokers that are gone. `clusters` has every cluster.
    `hot_topics` has the topics of bundles above a limit. These six tables contain only clusters of which a broker has
    a complete, sound report in the window. `silent` (`build_reports`) has a row for each broker with a report in the
    window, and `uncut` (`build_unsound_boundaries`) has the namespaces with excluded boundaries.

    `report_urls`: the files of each kind of `REPORTS`; every kind must be a key, and may have no files. The tables of
    `BASELINE` are read below `scratch_url`, where each must exist. The figures of every bundle are written there as
    `judged`, which replaces an earlier result. Spark's errors are raised unchanged.
    """
    landed = {kind: _read(spark, schema, report_urls[kind]) for kind, schema in REPORTS.items()}
    stored = {name: spark.read.schema(s).parquet(f"{scratch_url}/{name}") for name, s in BASELINE.items()}
    limits, brokers = stored.pop("limits"), landed["brokers"]
    report_summary = build_reports(landed["topics"], brokers, window).toArrow()
    reports = frame_of(spark, report_summary.select(["cluster", "broker", "instant_ms"]).drop_null())
    topics, owned = landed["topics"].where(SOUND_TOPIC), landed["owned"].where(SOUND_OWNED)
    boundaries = landed["boundaries"].where(SOUND_BOUNDARIES)
    namespaces = build_namespaces(boundaries, reports, stored["stored_boundaries"], window)
    figures = build(topics, owned, reports, namespaces)
    all_bundles = build_judged(
        figures,
        reports,
        namespaces,
        stored_bundles=stored["stored_bundles"],
        stored_brokers=stored["stored_brokers"],
        window=window,
    )
    all_bundles.write.mode("overwrite").parquet(f"{scratch_url}/judged")
    judged = spark.read.schema(_JUDGED).parquet(f"{scratch_url}/judged")
    broker_rows = build_brokers(judged, brokers, reports, stored["stored_brokers"], window).toArrow()
    changed = frame_of(spark, broker_rows)
    return {
        "boundaries": _boundary_changes(namespaces).toArrow(),
        "bundles": judged.where("is_changed").drop("is_changed").toArrow(),
        "namespaces": build_namespace_sums(judged, stored["stored_namespaces"]).toArrow(),
        "brokers": broker_rows,
        "clusters": build_clusters(judged, changed, reports, stored["stored_brokers"], window).toArrow(),
        "hot_topics": build_hot_topics(judged, topics, reports, limits).toArrow(),
        "silent": report_summary,
        "uncut": build_unsound_boundaries(landed["boundaries"]).toArrow(),
    }


def _read(spark: SparkSession, schema: str, urls: Sequence[str]) -> DataFrame:
    """Return the files as a DataFrame with this schema; an empty DataFrame without files."""
    return spark.read.schema(schema).parquet(*urls) if urls else spark.createDataFrame([], schema)


def _boundary_changes(namespaces: DataFrame) -> DataFrame:
    """Return the rows of `namespaces` whose boundaries are to be written, with the stored row_version as seen_row_version."""
    return namespaces.where("is_changed").selectExpr(
        "cluster", "namespace", "boundaries", "boundaries_at_ms", "row_version AS seen_row_version"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute bundle load with `spark-submit`: the same run with its inputs as options; every result is written below
    the scratch URL.
    """
    parser = argparse.ArgumentParser(
        prog="run_bundle_load", description=main.__doc__, fromfile_prefix_chars="@"
    )
    parser.add_argument("--master", default="local[2]", help="local[n], spark://host:port or sc://host:port")
    for kind in REPORTS:
        parser.add_argument(f"--{kind}", nargs="*", default=[], help=f"URLs of files of {kind}")
    parser.add_argument("--scratch", required=True, help="URL of the run's scratch directory")
    parser.add_argument("--window-end-ms", type=int, required=True)
    parser.add_argument("--window-length-ms", type=int, default=ReportWindow(0).length_ms)
    parser.add_argument("--gone-after-ms", type=int, default=ReportWindow(0).gone_after_ms)
    options = parser.parse_args(arguments)
    window = ReportWindow(options.window_end_ms, options.window_length_ms, options.gone_after_ms)
    urls = {kind: getattr(options, kind) for kind in REPORTS}

    def run(spark: SparkSession) -> None:
        for name, table in compute(spark, urls, options.scratch, window).items():
            frame_of(spark, table).write.mode("overwrite").parquet(f"{options.scratch}/{name}")

    with_session(options.master, run)


if __name__ == "__main__":
    main()
