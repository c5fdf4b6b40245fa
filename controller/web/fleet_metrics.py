"""Metrics of the fleet, read from the database at each scrape and served by `cleave metrics`.

Passes and Spark runs are tasks that end, so Prometheus cannot scrape them, and the counters of a worker end with the worker. The stored
figures survive: one process reports for the whole fleet, and two processes report the same figures. Names follow PIP-483 and PIP-486 where
these define one. Figures that only one process has (batches sent, sessions held) are in `controller.metrics` and
`controller.client_metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller import telemetry
from controller.domain.errors import CleaveError
from controller.domain.formatting import printable
from controller.store.fleet_figures import FleetFigures, TopicFigures, fleet_figures
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot

log = telemetry.get_logger(__name__)

Sample = tuple[str, Sequence[str], float | None]
"""The name of a metric, the values of its labels, and its value; None for a figure that is NULL, which gives no series."""
_TOPIC = ("topic",)
UP: Final = (
    "cleave_database_up",
    "1 if the database answered this scrape. If 0, no other metric is exported.",
)
HEALTH: Final = {
    "topics": "Live topics.",
    "active_segments": "Active segments of live topics.",
    "uncovered_ranges": "Ranges of hashes that no active segment owns. Anything but 0 is an incident.",
    "live_operations": "Operations that have not ended.",
    "oldest_operation_seconds": "Age of the oldest of them.",
    "stuck_operations": "Of these, operations that should have moved on (inspect.stuck_operations).",
    "open_deletion_entries": "Logs that are still to be deleted from a data plane.",
    "evaluations_due": "Evaluations that are due, one for each topic and lane.",
    "oldest_evaluation_due_seconds": "Time since the oldest evaluation with a due time became due; evaluations because of a change have no age.",
    "load_age_seconds": "Age of the youngest aggregated load.",
    "sample_age_seconds": "Time since the last sample of any source in the aggregated load.",
    "workers": "Workers that are up.",
    "shards": "Topic shards that had a worker within the last hour.",
    "shards_without_worker": "Topic shards that had a worker within the last hour and have none now; their topics wait.",
    "lease_changes": "Times that a worker acquired a topic shard.",
    "undrained_segments": "Sealed segments that are not drained, one for each ordered subscription.",
    "oldest_undrained_seconds": "Time since the oldest of these segments was sealed.",
    "still_drain_seconds": "Longest time without progress of one of these segments, of those whose ancestors are drained.",
    "buckets_withheld": "Entry buckets of all topics whose owner must release them and has not released them.",
    "oldest_withheld_seconds": "Time since the oldest of these releases was requested.",
    "buckets_away": "Entry buckets of all topics whose owner is disconnected and within its grace period.",
    "oldest_away_seconds": "Longest time that one of these owners has been disconnected.",
    "held_topics": "Topics that are held because their logs are ahead of the database (inspect.held_topics).",
    "unverified_topics": "Topics whose logs have not been compared with the database since the database was restored.",
    "unmanaged_logs": "Unmanaged logs: logs with the name of a segment that Cleave must not delete (inspect.unmanaged_logs).",
    "set_aside": "Subjects that batches exclude at present (is_current in inspect.set_aside).",
    "collectors_beside": "Collectors that read the same counters as another collector (inspect.load_readers).",
    "clock_off_seconds": "The largest difference between the clock of a live reader of counters and the database's clock.",
    "gates_shut": "Gates that hold the messages of a segment back from standard consumers (inspect.gates).",
    "gates_overdue": "Of these, gates of segments whose ancestors are all read.",
    "oldest_overdue_gate_seconds": "Time since the first of these gates could be open.",
    "gates_breached": "Closed gates whose barrier a consumer has acknowledged.",
    "unordered_stock_subscriptions": "Subscriptions for standard consumers that are used as a type which no gate keeps in order.",
}
"""Help texts by column of `inspect.health`; the metric is named `cleave_fleet_` and the column."""
_COUNTED_HEALTH = {"lease_changes"}
TOTALS: Final = {
    "change": ("cleave_layout_changes_total", "Changes of layouts, by kind and origin.", ("kind", "origin")),
    "refusal": (
        "cleave_suppressed_total",
        "Refusals in the decision log, by lane and reason; each new outcome counts once.",
        ("lane", "reason"),
    ),
}
SOURCES: Final = (
    "cleave_sample_source_silent_seconds",
    "Time since the last sample of a broker, or another source, that the load record of an active segment names.",
    ("source",),
)
SHARDS: Final = (
    "cleave_shard_lease_changes_total",
    "Times that a worker acquired the topic shard; for shards that had a worker within the last hour.",
    ("shard",),
)
APPROVALS: Final = {
    "pending": ("cleave_approvals_pending", "Approvals that wait for a person."),
    "oldest_seconds": ("cleave_oldest_approval_seconds", "Age of the oldest of them."),
    "ending": (
        "cleave_approvals_ending",
        "Of these, approvals with less than a quarter of their time left; at the end of the time the default answer applies.",
    ),
}
RECENT: Final = {
    "operation": (
        "cleave_recent_operation_seconds",
        "Time from the intent of an operation to its end, for operations that were done within the last quarter of an hour.",
        ("kind", "quantile"),
    ),
    "wait": (
        "cleave_recent_operation_wait_seconds",
        "Time from the intent of an operation to its first step, for operations that ended within the last quarter of an hour.",
        ("quantile",),
    ),
    "step": (
        "cleave_recent_step_seconds",
        "Duration of a step of these operations.",
        ("step", "quantile"),
    ),
    "outrun": (
        "cleave_recent_load_outrun",
        "Load records that aggregations of the last quarter of an hour did not write, because another writer had changed them.",
        (),
    ),
}
"""Metrics of the last quarter of an hour, from `store.fleet_figures`."""
LEFT_OUT: Final = (
    "cleave_fleet_topics_left_out",
    "Live topics without series of their own; see --most-topics and --prefix.",
)
TOPIC_GAUGES: Final = {
    "active_segments": ("pulsar_scalable_topic_active_segments", "Active segments of the topic (PIP-483)."),
    "entry_buckets": (
        "pulsar_scalable_topic_entry_buckets",
        "Entry buckets of its active segments (PIP-486).",
    ),
    "shared_segments": (
        "pulsar_scalable_topic_shared_segments",
        "Segments that more than one consumer of a subscription reads (PIP-486).",
    ),
    "buckets_withheld": (
        "pulsar_scalable_topic_buckets_withheld",
        "Entry buckets whose owner must release them and has not released them (PIP-486).",
    ),
    "oldest_withheld_seconds": (
        "cleave_topic_oldest_withheld_seconds",
        "Time since the oldest of these releases was requested.",
    ),
    "buckets_away": (
        "cleave_topic_buckets_away",
        "Entry buckets whose owner is disconnected and within its grace period.",
    ),
    "oldest_away_seconds": (
        "cleave_topic_oldest_away_seconds",
        "Longest time that one of these owners has been disconnected.",
    ),
    "draining_segments": (
        "pulsar_scalable_topic_draining_segments",
        "Sealed segments that are not drained, one for each ordered subscription (PIP-486).",
    ),
    "still_drain_seconds": (
        "cleave_topic_still_drain_seconds",
        "Longest time without progress of one of these segments, of those whose ancestors are drained.",
    ),
    "hottest_ratio": (
        "cleave_topic_hottest_ratio",
        "Largest ratio of a rate to its split threshold; above 1 the segment is hot. Absent without fresh load.",
    ),
    "stale_segments": ("cleave_topic_stale_segments", "Its active segments without fresh load."),
}
"""Metrics of a topic by field of `TopicFigures`."""
TOPIC_TOTALS: Final = {
    "auto_splits": "Splits that the autoscaler made (PIP-483).",
    "auto_merges": "Merges that the autoscaler made (PIP-483).",
    "split_suppressed_max_segments": "Splits refused because of max_segments, one for each lane (PIP-483).",
    "merge_suppressed_max_depth": "Merges refused because of max_dag_depth (PIP-483).",
    "rebucket_rollovers": "Segments that were rebucketed (PIP-486).",
    "bucket_reassignments": "Assignments of entry buckets to a new owner (PIP-486).",
}
"""Help texts of a topic's counters by their keys in `TopicFigures.totals`."""


def described() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Return the name, type, labels and help text of every metric."""
    return [
        (UP[0], "gauge", (), UP[1]),
        *((_health_name(name), "counter" if name in _COUNTED_HEALTH else "gauge", (), text) for name, text in HEALTH.items()),
        *((name, "counter", labels, text) for name, text, labels in TOTALS.values()),
        (SOURCES[0], "gauge", SOURCES[2], SOURCES[1]),
        (SHARDS[0], "counter", SHARDS[2], SHARDS[1]),
        *((name, "gauge", (), text) for name, text in APPROVALS.values()),
        *((name, "gauge", labels, text) for name, text, labels in RECENT.values()),
        (LEFT_OUT[0], "gauge", (), LEFT_OUT[1]),
        *((name, "gauge", _TOPIC, text) for name, text in TOPIC_GAUGES.values()),
        *((_total_name(name), "counter", _TOPIC, text) for name, text in TOPIC_TOTALS.items()),
    ]  # fmt: skip


class FleetMetrics(Collector):
    """Collector of one database's metrics. While the database is unavailable it exports only `cleave_database_up 0`."""

    def __init__(self, store: Store, *, prefix: str = "", most_topics: int = 1000) -> None:
        """Only topics whose full names begin with `prefix` have series of their own, at most `most_topics`."""
        self._store, self._prefix, self._most_topics = store, prefix, most_topics

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, without a query."""
        yield from _families().values()

    def collect(self) -> Iterator[Metric]:
        """Read the figures in one snapshot and yield every metric: of the fleet, and of the topics that `prefix` and `most_topics` select.
        A metric without a known value has no samples.

        Yields only `cleave_database_up 0`, and logs a warning, after any CleaveError: for instance if the database is unavailable, or if a
        statement takes longer than the limit of `fleet_figures`.
        """
        try:
            with snapshot(self._store) as tx:
                figures = fleet_figures(tx, prefix=self._prefix, most_topics=self._most_topics)
        except CleaveError as error:
            log.warning("fleet metrics not read", error=str(error))
            yield GaugeMetricFamily(*UP, value=0)
            return
        families = _families()
        for name, labels, value in _samples(figures):
            if value is not None:
                families[name].add_metric(list(map(printable, labels)), value)
        yield from families.values()


def _health_name(column: str) -> str:
    """Return the metric's name for a column of `inspect.health`."""
    return f"cleave_fleet_{column}" + ("_total" if column in _COUNTED_HEALTH else "")


def _total_name(counter: str) -> str:
    """Return the metric's name for a counter of a topic."""
    return f"pulsar_scalable_topic_{counter}_total"


def _families() -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
    """Return every metric by name, without values."""
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    return {name: kinds[kind](name, text, labels=labels) for name, kind, labels, text in described()}


def _samples(figures: FleetFigures) -> Iterator[Sample]:
    """Yield the sample of each of the figures that a metric exports: the metric's name, the values of its labels, and its value, None if
    unknown. Totals of tallies that are not in `TOTALS` are left out.
    """
    yield UP[0], (), 1
    for column in HEALTH:
        yield _health_name(column), (), figures.health[column]
    for tally, kind, because, count in figures.totals:
        if tally in TOTALS:
            yield TOTALS[tally][0], (kind, because), count
    for source, seconds in figures.silent_seconds.items():
        yield SOURCES[0], (source,), seconds
    for shard, times in figures.lease_changes.items():
        yield SHARDS[0], (shard,), times
    for column, (name, _) in APPROVALS.items():
        yield name, (), figures.approvals[column]
    for row in figures.recent:
        yield RECENT[row.of][0], row.labels, row.value
    yield LEFT_OUT[0], (), figures.topics_left_out
    yield from _samples_of_topics(figures.topics)


def _samples_of_topics(topics: Sequence[TopicFigures]) -> Iterator[Sample]:
    """Yield the samples of the metrics that have a series for each of the topics."""
    for topic in topics:
        for field, (name, _) in TOPIC_GAUGES.items():
            yield name, (topic.topic,), getattr(topic, field)
        for counter in TOPIC_TOTALS:
            yield _total_name(counter), (topic.topic,), topic.totals[counter]
