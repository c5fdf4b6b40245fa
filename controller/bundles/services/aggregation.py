"""Bundle aggregation: from landed reports to stored load of bundles, namespaces and brokers, one run for each window.

A run reads the baseline from the store, quarantines files that are not reports, computes in
`spark_jobs.run_bundle_load`, and merges the result if the records have not changed. All steps use the rights of the
loader. A repeated run changes nothing, because of its id and the watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from controller import telemetry
from controller.bundles.broker_reports import LandedReports, ReportArea
from controller.bundles.domain.splitting.policy import read_stored
from controller.bundles.store import loads as bundle_loads
from controller.bundles.store.loads import BASELINE_SCHEMAS, BundleRun
from controller.clock import to_datetime
from controller.landing.merged_windows import is_late
from controller.landing.scratch import RUNS, Scratch, attempt_of
from controller.store import set_aside
from controller.store.postgres.arrow_copy import MergeResult
from controller.store.postgres.engine import Store
from controller.store.set_aside import SetAside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.bundle_figures import ReportWindow

log = telemetry.get_logger(__name__)

TICK_SLACK_MS = 60_000
"""Milliseconds by which the tick in a file's name may differ from the times in the file."""

_LIMITS = ("max_topics", "max_sessions", "max_msg_rate", "max_byte_rate")
LIMIT_SCHEMA = pa.schema(
    [("cluster", pa.string()), ("namespace", pa.string()), *((name, pa.float64()) for name in _LIMITS)]
)


@dataclass(frozen=True, slots=True)
class BundleAggregation:
    """Result of a run. `applied` is False if the window has no file of brokers, or if this run, this window or a later
    one was merged already. `written` and `outrun`: numbers of rows that the run wrote, and that it did not write
    because the record had changed. `brokers`: number of broker rows to write or delete. `topics`: number of topic rows
    in the files, one for each topic and tick; 0 for both if nothing was computed. `quarantined`: former paths of the
    files that are not reports, also of a file that could not be moved.
    """

    run_id: str
    window_end_ms: int
    brokers: int
    topics: int
    written: int
    outrun: int
    applied: bool
    quarantined: tuple[str, ...]


def window_ending_at(end_ms: int, length_seconds: float) -> ReportWindow:
    """Return the window of that length that ends at `end_ms` (milliseconds since the Unix epoch). A broker without a report counts as gone
    after the default time of `ReportWindow`, or after the length of the window if that is longer. Raises InvalidInput for a length of
    0 s or less.
    """
    from spark_jobs.bundle_figures import ReportWindow

    length_ms = round(length_seconds * 1000)
    return ReportWindow(end_ms, length_ms, max(length_ms, ReportWindow(end_ms).gone_after_ms))


def aggregate(
    store: Store,
    area: ReportArea,
    master: str,
    window: ReportWindow,
    *,
    run_id: str,
    spark_conf: Mapping[str, str] | None = None,
) -> BundleAggregation:
    """Aggregate one window on the Spark session for `master` with the settings `spark_conf`, and merge the result. `store` logs in as the
    loader.

    Files that are not reports are logged with the reason and moved into quarantine, even if nothing is aggregated. A
    file that another run has moved is absent from the result; a file that cannot be moved is logged once more and
    stays. Nothing is merged (`applied` is False) if this run, this window or a later one was merged before, or if the
    window has no file of brokers. Before the merge, the topics of hot bundles are stored in the area. A merge also
    records the brokers and namespaces whose reports were skipped (`set_aside`). Intermediate files are always deleted.
    All clusters of a database share one area and one watermark.

    Raises StoreUnavailable, the errors of the Spark session, and OSError if the storage does not answer.
    """
    with store.transaction() as tx:
        baseline = bundle_loads.baseline(tx)
        settings = bundle_loads.split_settings(tx)
        watermark = bundle_loads.watermark(tx)
    landed = area.landed(window.start_ms - TICK_SLACK_MS, window.end_ms + TICK_SLACK_MS)
    for file in landed.rejected:
        log.warning("file set aside", path=file.path, reason=file.reason)
    quarantined = tuple(area.quarantine(landed))
    if is_late(run_id, window.end_ms, watermark) or not landed.files["brokers"]:
        return BundleAggregation(run_id, window.end_ms, 0, 0, 0, 0, False, quarantined)
    scratch = Scratch(area.location, f"{RUNS}/{attempt_of(run_id)}")
    try:
        for name in BASELINE_SCHEMAS:
            scratch.write(name, baseline[name])
        scratch.write("limits", _limits(settings))
        changes = _compute(master, spark_conf, area, landed, scratch, window)
        # Before the merge, because after it a repeated run ends at the watermark. Topics of a window that is not merged are not read.
        area.publish_hot_topics(window.end_ms, changes["hot_topics"])
        merged = _merge(
            store, BundleRun(run_id, to_datetime(window.end_ms), "spark", landed.topics, quarantined), changes
        )
    finally:
        scratch.discard()
    broker_count = changes["brokers"].num_rows
    counts = {
        "brokers": broker_count,
        "topics": landed.topics,
        "written": merged.written,
        "outrun": merged.outrun,
    }
    log.info("bundle load aggregated", run_id=run_id, applied=merged.applied, **counts)
    return BundleAggregation(run_id, window.end_ms, applied=merged.applied, quarantined=quarantined, **counts)


def _compute(
    master: str,
    conf: Mapping[str, str] | None,
    area: ReportArea,
    landed: LandedReports,
    scratch: Scratch,
    window: ReportWindow,
) -> dict[str, pa.Table]:
    """Compute the changes of the window on the Spark session for `master` with the settings `conf`, from the landed
    files and from the baseline and limits in `scratch`. Return a table for each name in CHANGE_SCHEMAS, the topics of
    hot bundles (`hot_topics`), and the skipped reports of brokers (`silent`) and of namespaces (`uncut`). Also writes
    intermediate files into `scratch`. Raises the errors of the Spark session.
    """
    from spark_jobs.run_bundle_load import compute
    from spark_jobs.session import with_session

    def run(spark: SparkSession) -> dict[str, pa.Table]:
        return compute(spark, area.urls(landed), scratch.url, window)

    return with_session(master, run, conf)


def _merge(store: Store, run: BundleRun, changes: Mapping[str, pa.Table]) -> MergeResult:
    """Merge the changes in one transaction. Return the numbers of rows that were written, and of rows that were not
    written because the record had changed since the run read the record (`outrun`). If `applied` is True, the brokers
    and namespaces whose reports were skipped are also recorded.

    If this run, its window or a later window was merged before, nothing changes and `applied` is False. Raises
    StoreUnavailable.
    """
    with store.transaction() as tx:
        merged = bundle_loads.stage_and_merge(tx, run, changes)
        if merged.applied:
            set_aside.note(tx, set_aside.Batch.BUNDLE_LOAD, list(_set_aside(changes)))
    return merged


def _set_aside(changes: Mapping[str, pa.Table]) -> Iterator[SetAside]:
    """Yield the brokers and namespaces whose reports were skipped, with the reasons, from the tables `silent` and `uncut` of the changes.
    `silent` has each broker with a report in the window; a broker of which no row was skipped is left out.
    """
    for row in changes["silent"].to_pylist():
        if row["set_aside"]:
            reason = (
                f"{row['set_aside']} figures or names of its reports cannot be: the report counts as none"
            )
            yield SetAside(f"broker {row['broker']} of cluster {row['cluster']}", reason)
    for row in changes["uncut"].to_pylist():
        reason = f"{row['set_aside']} lists of its boundaries do not tile the hashes, or its name is no tenant/namespace"
        yield SetAside(f"namespace {row['namespace']} of cluster {row['cluster']}", reason)


def _limits(settings: Mapping[tuple[str, str], Mapping[str, Any]]) -> pa.Table:
    """Return a row with the limits of the split policy for each known namespace, in LIMIT_SCHEMA. Settings that cannot be read are logged,
    and the default limits hold. `settings`: the overrides by (cluster, namespace).
    """
    rows = []
    for (cluster, namespace), overrides in settings.items():
        policy, unreadable = read_stored(overrides)
        if unreadable is not None:
            log.warning("cannot read split settings", namespace=namespace, error=unreadable)
        limits = {name: float(getattr(policy, name)) for name in _LIMITS}
        rows.append({"cluster": cluster, "namespace": namespace, **limits})
    return pa.Table.from_pylist(rows, LIMIT_SCHEMA)
