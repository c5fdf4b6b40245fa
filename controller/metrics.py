"""Metrics of Cleave's own processes, in the default registry. Names follow PIP-483 and PIP-486 where these define a name.

`controller.client_metrics` has the metrics of applications.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

DECISIONS = Counter("cleave_decisions_total", "Decisions, by lane and kind of action.", ["lane", "kind"])
REFUSALS = Counter("cleave_refusals_total", "Refusals, by lane and reason.", ["lane", "reason"])
OPERATIONS = Counter(
    "cleave_operations_total", "Operations ended, by kind, origin and outcome.", ["kind", "origin", "outcome"]
)
OPERATION_SECONDS = Histogram(
    "cleave_operation_seconds",
    "Time from the intent of an operation to its end, where it was done.",
    ["kind"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
NOTIFICATION_LAG = Histogram(
    "cleave_notification_lag_seconds",
    "Time from the intent of an operation to when a worker or a pass first takes it up.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
CONSUMER_DECISION_SECONDS = Histogram(
    "cleave_consumer_decision_seconds",
    "Time from the notification of a change of consumers to the decision.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
LOST_RACES = Counter(
    "cleave_lost_races_total",
    "Compare-and-set attempts that lost against another writer, by the object to be written; lock: attempts that waited too long for a row"
    " or deadlocked.",
    ["what"],
)
LEASE_CHANGES = Counter(
    "cleave_lease_changes_total", "Topic shards that this worker acquired or lost.", ["change"]
)
COLLECTOR_TICKS = Counter("cleave_collector_ticks_total", "Collector ticks, by outcome.", ["outcome"])
BROKER_PAGES = Counter("cleave_broker_pages_total", "Metrics pages of brokers, by outcome.", ["outcome"])
CONSUMER_ROUNDS = Counter("cleave_consumer_rounds_total", "Polls for consumers, by outcome.", ["outcome"])
BUNDLE_TICKS = Counter("cleave_bundle_ticks_total", "Ticks of the bundle collector, by outcome.", ["outcome"])
BUNDLE_SILENT = Gauge("cleave_bundle_silent_brokers", "Brokers without a complete answer in the last tick.")
ASSET_EVENTS = Counter(
    "cleave_asset_events_total", "Layout changes posted to Airflow, by outcome.", ["outcome"]
)
SESSIONS = Gauge(
    "cleave_connected_consumers", "Consumers that hold an assignment stream open at this worker."
)
SESSIONS_ENDED = Counter(
    "cleave_sessions_ended_total", "Sessions of consumers that ended, by reason.", ["reason"]
)
BUCKETS_OWNED = Gauge(
    "cleave_buckets_owned",
    "Entry buckets, or runs of them, with an owner, of the topics that this worker leads.",
)
BUCKETS_WITHHELD = Gauge(
    "cleave_buckets_withheld", "Of these, buckets whose owner must release them and has not released them."
)
BUCKETS_AWAY = Gauge(
    "cleave_buckets_away", "Of these, buckets whose owner is disconnected and within its grace period."
)
BUCKETS_OVERDUE = Gauge(
    "cleave_buckets_overdue",
    "Of these, buckets whose release, or whose owner's reconnection, is overdue.",
)
BUCKET_ALARMS = Counter("cleave_bucket_alarms_total", "Buckets that became overdue.")
SEGMENTS_SHARED = Gauge(
    "cleave_shared_segments", "Segments that more than one consumer of a subscription reads."
)
SEGMENTS_DRAINING = Gauge("cleave_draining_segments", "Sealed segments that consumers read, by subscription.")
BUCKETS_GRANTED = Counter(
    "cleave_buckets_granted_total", "Assignments of entry buckets, or of runs of them, to a new owner."
)
KEY_SAMPLES = Counter("cleave_key_samples_total", "Logs whose keys were sampled, by outcome.", ["outcome"])
WAKEUPS = Counter("cleave_worker_wakeups_total", "Wake-ups of the worker, by cause.", ["sensor"])
GATES_SHUT = Gauge(
    "cleave_gates_shut",
    "Gates of standard consumers that are not open, of the topics that this worker looks after.",
)
GATE_OPENING_SECONDS = Histogram(
    "cleave_gate_opening_seconds",
    "Time from the record that every ancestor of a segment is drained until its gate is open.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60),
)
