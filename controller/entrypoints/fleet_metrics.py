"""Metrics of the fleet, read from the database at each scrape and served by `cleave metrics`.

Passes and runs of Spark are tasks that end, and nobody can scrape those; workers come and go with what they counted. What
is stored survives them: one process of this kind answers for all, and two give the same figures. Names follow PIP-483 and
PIP-486 where these name one. What a process knows of itself alone (batches sent, sessions held) is in `telemetry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller import telemetry
from controller.domain.errors import CleaveError
from controller.domain.shown import printable
from controller.store.fleet_figures import FleetFigures, TopicFigures, fleet_figures
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot

log = telemetry.get_logger(__name__)

_TOPIC = ("topic",)
UP: Final = (
    "cleave_database_up",
    "Whether the database answered this scrape; without it there is nothing else here.",
)
HEALTH: Final = {
    "topics": "Live topics.",
    "active_segments": "Active segments of live topics.",
    "uncovered_ranges": "Ranges of hashes that no active segment owns. Anything but 0 is an incident.",
    "live_operations": "Operations that have not ended.",
    "oldest_operation_seconds": "Age of the oldest of them.",
    "stuck_operations": "Of these, operations that should have moved on (inspect.stuck_operations).",
    "open_tombstones": "Logs that are still to be deleted from a data plane.",
    "evaluations_due": "Topics, once for each lane, that a pass or a worker is to look at.",
    "oldest_evaluation_due_seconds": "For how long the first of those has been due that are due at an instant; a change has no age.",
    "load_age_seconds": "Age of the youngest aggregated load.",
    "sample_age_seconds": "Time since any source of samples was heard of in it.",
    "workers": "Workers that are up.",
    "shards": "Shares of the topics that workers divide among themselves, of those that had a worker within the hour.",
    "shards_without_worker": "Shards that had a worker within the hour and have none now; their topics wait.",
    "lease_changes": "Times that a worker began to have a shard.",
    "undrained_segments": "Sealed segments, once for each ordered subscription, that its consumers have not read to the end.",
    "oldest_undrained_seconds": "Time since the first of them was sealed.",
    "still_drain_seconds": "The longest time that one of them has stood still, of those that wait for no other.",
    "buckets_withheld": "Entry buckets whose owner is to let go of them and has not yet, of all topics.",
    "oldest_withheld_seconds": "For how long the first of them has been waited for.",
    "buckets_away": "Entry buckets whose owner is not connected and may come back, of all topics.",
    "oldest_away_seconds": "For how long the first of these owners has not been connected.",
    "held_topics": "Topics whose logs are ahead of the database and do not tell enough (inspect.held_topics).",
    "unverified_topics": "Topics whose logs are still to be compared with the database after it came back.",
    "foreign_logs": "Logs that have the name of a segment and that Cleave must not delete (inspect.foreign_logs).",
    "set_aside": "Subjects that a batch of many topics left out within a quarter of an hour (inspect.set_aside).",
    "collectors_beside": "Collectors that read the same counters as another one (inspect.load_readers).",
    "clock_off_seconds": "The largest difference between the clock of a live reader of counters and the database's clock.",
    "gates_shut": "Gates that hold the messages of a segment back from standard consumers (inspect.gates).",
    "gates_overdue": "Of these, gates of segments whose ancestors are all read.",
    "oldest_overdue_gate_seconds": "Time since the first of these gates could be open.",
    "gates_breached": "Closed gates whose barrier a consumer has acknowledged.",
    "unordered_stock_subscriptions": "Subscriptions for standard consumers that are used as a type which no gate keeps in order.",
}
"""Column of `inspect.health` to what it tells; the metric is `cleave_fleet_` and the column."""
_COUNTED_HEALTH = {"lease_changes"}
TOTALS: Final = {
    "change": ("cleave_layout_changes_total", "Changes of layouts, by kind and origin.", ("kind", "origin")),
    "refusal": (
        "cleave_suppressed_total",
        "Outcomes in the ledger that refused something, by lane and reason; each new outcome counts once.",
        ("lane", "reason"),
    ),
}
SOURCES: Final = (
    "cleave_sample_source_silent_seconds",
    "Time since samples of a broker, or of another source, were last in the load.",
    ("source",),
)
SHARDS: Final = (
    "cleave_shard_lease_changes_total",
    "Times that a worker began to have the shard; of shards that had a worker within the hour.",
    ("shard",),
)
APPROVALS: Final = {
    "pending": ("cleave_approvals_pending", "Approvals that wait for a person."),
    "oldest_seconds": ("cleave_oldest_approval_seconds", "Age of the oldest of them."),
    "ending": (
        "cleave_approvals_ending",
        "Of these, approvals with less than a quarter of their time left; then the default holds.",
    ),
}
RECENT: Final = {
    "operation": (
        "cleave_recent_operation_seconds",
        "Time from the intent of an operation to its end, of those done within a quarter of an hour, wherever they ran.",
        ("kind", "quantile"),
    ),
    "wait": (
        "cleave_recent_operation_wait_seconds",
        "Time from the intent of an operation to its first step, of those that ended within a quarter of an hour.",
        ("quantile",),
    ),
    "step": (
        "cleave_recent_step_seconds",
        "Time that a step of these operations took.",
        ("step", "quantile"),
    ),
    "outrun": (
        "cleave_recent_load_outrun",
        "Load records that the aggregations of a quarter of an hour did not write, since somebody else had meanwhile.",
        (),
    ),
}
"""What is told of the last quarter of an hour, by `store.recent_figures`."""
LEFT_OUT: Final = (
    "cleave_fleet_topics_left_out",
    "Live topics without series of their own, see --most-topics and --prefix.",
)
TOPIC_GAUGES: Final = {
    "pulsar_scalable_topic_active_segments": "Active segments of the topic (PIP-483).",
    "pulsar_scalable_topic_entry_buckets": "Entry buckets of its active segments (PIP-486).",
    "pulsar_scalable_topic_shared_segments": "Segments that several consumers of a subscription read (PIP-486).",
    "pulsar_scalable_topic_buckets_withheld": "Entry buckets whose owner is to let go of them and has not yet (PIP-486).",
    "cleave_topic_oldest_withheld_seconds": "For how long the first of them has been waited for.",
    "cleave_topic_buckets_away": "Entry buckets whose owner is not connected and may come back.",
    "cleave_topic_oldest_away_seconds": "For how long the first of these owners has not been connected.",
    "pulsar_scalable_topic_draining_segments": "Sealed segments, once for each ordered subscription, that are not read to the end (PIP-486).",
    "cleave_topic_still_drain_seconds": "The longest time that one of them has stood still, of those that wait for no other.",
    "cleave_topic_hottest_ratio": "Its largest rate over the split threshold of that rate; above 1 is hot. Nothing without fresh load.",
    "cleave_topic_stale_segments": "Its active segments without fresh load.",
}
TOPIC_TOTALS: Final = {
    "auto_splits": "Splits that the autoscaler made (PIP-483).",
    "auto_merges": "Merges that the autoscaler made (PIP-483).",
    "split_suppressed_max_segments": "Outcomes that refused a split because of max_segments, once for each lane (PIP-483).",
    "merge_suppressed_max_depth": "Outcomes that refused a merge because of max_dag_depth (PIP-483).",
    "rebucket_rollovers": "Segments replaced to have another number of entry buckets (PIP-486).",
    "bucket_reassignments": "Entry buckets that got an owner, or another one (PIP-486).",
}
"""What is counted of a topic; the metric is `pulsar_scalable_topic_` and the name, and `_total`."""


def described() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Every metric: its name, its type, its labels, and what it tells."""
    return [
        (UP[0], "gauge", (), UP[1]),
        *((_health_name(name), "counter" if name in _COUNTED_HEALTH else "gauge", (), text) for name, text in HEALTH.items()),
        *((name, "counter", labels, text) for name, text, labels in TOTALS.values()),
        (SOURCES[0], "gauge", SOURCES[2], SOURCES[1]),
        (SHARDS[0], "counter", SHARDS[2], SHARDS[1]),
        *((name, "gauge", (), text) for name, text in APPROVALS.values()),
        *((name, "gauge", labels, text) for name, text, labels in RECENT.values()),
        (LEFT_OUT[0], "gauge", (), LEFT_OUT[1]),
        *((name, "gauge", _TOPIC, text) for name, text in TOPIC_GAUGES.items()),
        *((f"pulsar_scalable_topic_{name}_total", "counter", _TOPIC, text) for name, text in TOPIC_TOTALS.items()),
    ]  # fmt: skip


class FleetMetrics(Collector):
    """The metrics of one database. While it is away there is `cleave_database_up 0` and nothing else."""

    def __init__(self, store: Store, *, prefix: str = "", most_topics: int = 1000) -> None:
        self._store, self._prefix, self._most_topics = store, prefix, most_topics

    def describe(self) -> Iterator[Metric]:
        """The names, without asking the database."""
        for name, kind, labels, text in described():
            yield _family(name, kind, text, labels)

    def collect(self) -> Iterator[Metric]:
        """The values now."""
        try:
            with snapshot(self._store) as tx:
                figures = fleet_figures(tx, prefix=self._prefix, most_topics=self._most_topics)
        except CleaveError as error:
            log.warning("no metrics of the fleet", error=str(error))
            yield GaugeMetricFamily(*UP, value=0)
            return
        yield GaugeMetricFamily(*UP, value=1)
        yield from _of_fleet(figures)
        yield from _of_topics(figures.topics)


def _health_name(column: str) -> str:
    return f"cleave_fleet_{column}" + ("_total" if column in _COUNTED_HEALTH else "")


def _family(
    name: str, kind: str, text: str, labels: Sequence[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return family(name, text, labels=labels)


def _of_fleet(figures: FleetFigures) -> Iterator[Metric]:
    for column, text in HEALTH.items():
        value = figures.health[column]
        kind = "counter" if column in _COUNTED_HEALTH else "gauge"
        family = _family(_health_name(column), kind, text, ())
        if value is not None:
            family.add_metric([], value)
        yield family
    for tally, (name, text, labels) in TOTALS.items():
        total = CounterMetricFamily(name, text, labels=labels)
        for what, kind, because, count in figures.totals:
            if what == tally:
                total.add_metric([kind, because], count)
        yield total
    silent = GaugeMetricFamily(SOURCES[0], SOURCES[1], labels=SOURCES[2])
    for source, seconds in figures.silent_seconds.items():
        silent.add_metric([printable(source)], seconds)
    yield silent
    shards = CounterMetricFamily(SHARDS[0], SHARDS[1], labels=SHARDS[2])
    for shard, times in figures.lease_changes.items():
        shards.add_metric([shard], times)
    yield shards
    for column, (name, text) in APPROVALS.items():
        yield _single(name, text, figures.approvals[column])
    yield from _of_late(figures)
    yield GaugeMetricFamily(*LEFT_OUT, value=figures.topics_left_out)


def _of_late(figures: FleetFigures) -> Iterator[Metric]:
    for of, (name, text, labels) in RECENT.items():
        family = GaugeMetricFamily(name, text, labels=labels)
        for one in figures.recent:
            if one.of == of:
                family.add_metric(list(map(printable, one.labels)), one.value)
        yield family


def _single(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def _of_topics(topics: Sequence[TopicFigures]) -> Iterator[Metric]:
    gauges = {name: GaugeMetricFamily(name, text, labels=_TOPIC) for name, text in TOPIC_GAUGES.items()}
    totals = {
        name: CounterMetricFamily(f"pulsar_scalable_topic_{name}", text, labels=_TOPIC)
        for name, text in TOPIC_TOTALS.items()
    }
    for one in topics:
        values = (
            one.active_segments,
            one.entry_buckets,
            one.shared_segments,
            one.buckets_withheld,
            one.oldest_withheld_seconds,
            one.buckets_away,
            one.oldest_away_seconds,
            one.draining_segments,
            one.still_drain_seconds,
            one.hottest_ratio,
            one.stale_segments,
        )
        for gauge, value in zip(gauges.values(), values, strict=True):
            if value is not None:
                gauge.add_metric([printable(one.topic)], value)
        for name, total in totals.items():
            total.add_metric([printable(one.topic)], one.totals[name])
    yield from gauges.values()
    yield from totals.values()
