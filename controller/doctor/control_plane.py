"""Checks of workers, operations, topics, entry buckets and gates. Each check returns its result as a sentence."""

from __future__ import annotations

from controller.bootstrap import Application
from controller.doctor.findings import Note, read
from controller.domain.errors import Terminal
from controller.domain.formatting import duration
from controller.questions.overviews import live_workers
from controller.questions.question import read_view

_GAPS = "inspect.bucket_gaps"
OVERDUE_SECONDS = 10.0
"""Seconds after which a gate that could be open is reported. The keeper opens a gate within a second; a slow
broker needs longer.
"""


def workers(cleave: Application) -> str:
    """Return a sentence with the running workers, and where they serve consumers. Raises Note if no worker is
    running, or if the workers divide the topics into another number of shards than this process.
    """
    count = cleave.settings.worker_shards
    with cleave.store.transaction() as tx:
        alive = live_workers(tx)
        other_counts = read_view(
            tx, "inspect.leases", "name = 'shard-count'", "live", "holder <> :count", count=str(count)
        )
    if other_counts:
        raise Note(
            f"the workers divide the topics into {other_counts[0]['holder']} shards, and CLEAVE_WORKER_SHARDS is {count} here; every "
            "process of a database needs the same number"
        )
    if not alive:
        raise Note(
            "no worker is up: Airflow's passes run operations, but consumer events wait; start `cleave worker`"
        )
    serving = [f"{lease['holder']} (consumers at {lease['address']})" for lease in alive if lease["address"]]
    silent = [str(lease["holder"]) for lease in alive if not lease["address"]]
    return f"{len(alive)} up: {', '.join((*serving, *silent))}"


def worker_schemas(cleave: Application) -> str:
    """Check that every running worker knows the newest applied migration. Raises Note with the workers that
    are older than the schema; a worker that reports no version counts as older. Without a running worker the
    check succeeds.
    """
    with cleave.store.transaction() as tx:
        alive = live_workers(tx)
        [newest_migration] = read_view(
            tx, "inspect.migrations", "name <> 'views'", columns='max(name COLLATE "C") AS newest'
        )
    old_workers = [
        worker for worker in alive if (worker["schema_version"] or "") < newest_migration["newest"]
    ]
    if not old_workers:
        return "no running worker is older than the schema"
    versions = {worker["holder"]: worker["schema_version"] or "no version" for worker in old_workers}
    listed_workers = ", ".join(f"{holder} (knows {version})" for holder, version in sorted(versions.items()))
    raise Note(
        f"older than the schema, which is at {newest_migration['newest']}: {listed_workers}; replace them by this version"
    )


def stuck_operations(cleave: Application) -> str:
    """Check that every live operation makes progress. Raises Terminal with the number of stuck operations,
    and the oldest.
    """
    stuck = read(cleave, "inspect.stuck_operations", order="age_seconds DESC")
    if not stuck:
        return "none is stuck"
    oldest = stuck[0]
    raise Terminal(
        f"{len(stuck)} do not move on, the oldest is {oldest['kind']} {oldest['operation_id']} of {oldest['topic']}: "
        f"{oldest['stuck_because']}; `cleave operations --stuck` lists all of them"
    )


def held_topics(cleave: Application) -> str:
    """Check that no topic is held. Raises Terminal with the first held topic; Note if none is held but the
    logs of topics are still to be compared with the database.
    """
    topics = read(cleave, "inspect.held_topics", order="unverified, held_at, topic")
    if not topics:
        return "none, and each topic's logs have been compared with this database"
    unverified = [topic["topic"] for topic in topics if topic["unverified"]]
    held_count, first_topic = len(topics) - len(unverified), topics[0]
    if not held_count:
        raise Note(
            f"the logs of {len(unverified)} topic(s), {unverified[0]} among them, have not been compared with this database yet; a "
            f"worker does so within seconds. If this does not change, `cleave topics recover {unverified[0]}` says why"
        )
    raise Terminal(
        f"nothing acts on {held_count} topic(s), first {first_topic['topic']}: {first_topic['held_reason']}; run `cleave topics recover "
        f"{first_topic['topic']} --dry-run`, and see docs/runbook/CleaveTopicHeld.md"
    )


def unmanaged_logs(cleave: Application) -> str:
    """Check that no unmanaged log is recorded. Raises Note with the number of these logs, which Cleave must
    not delete, and the names of up to 3.
    """
    columns = "backing_topic, count(*) OVER () AS logs"
    logs = read(cleave, "inspect.unmanaged_logs", columns=columns, order="topic, segment_id", limit=3)
    if not logs:
        return "none"
    names = ", ".join(log["backing_topic"] for log in logs)
    raise Note(
        f"{logs[0]['logs']} log(s) belong to no segment, and Cleave must not delete them: {names}"
        f"{', ...' if logs[0]['logs'] > len(logs) else ''}; inspect.unmanaged_logs says why, see docs/runbook/CleaveUnmanagedLogs.md"
    )


def buckets(cleave: Application) -> str:
    """Check that no entry bucket waits for longer than `bucket_gap_seconds`. Raises Note with the number of
    such buckets, and the bucket that has waited longest.
    """
    limit_seconds = cleave.settings.bucket_gap_seconds
    gaps = read(
        cleave, _GAPS, "gap_seconds > :limit_seconds", order="gap_seconds DESC", limit_seconds=limit_seconds
    )
    if not gaps:
        return f"none waits for longer than {duration(limit_seconds)}"
    worst = gaps[0]
    holder_text = f", held by {worst['holder']}" if worst["holder"] else ""
    raise Note(
        f"{len(gaps)} entry buckets have had no reader for too long: for {duration(float(worst['gap_seconds']))} "
        f"bucket {worst['bucket']} of segment {worst['segment_id']} of {worst['topic']} for {worst['subscription']}: "
        f"{worst['reason']}{holder_text}; `cleave consumers why {worst['topic']}` says since when, and which consumer holds the segments that the bucket waits for"
    )


def gates(cleave: Application) -> str:
    """Return a sentence with the number of shut gates. Raises Terminal with the first subscription of a type
    that no gate keeps in order, else with the first gate that is breached, else with the gate that has been
    overdue longest, if that is more than `OVERDUE_SECONDS`.
    """
    with cleave.store.transaction() as tx:
        shut_gates = read_view(
            tx, "inspect.gates", "gate <> 'open'", order="overdue_seconds DESC NULLS LAST, topic, segment_id"
        )
        unordered_subscriptions = read_view(
            tx,
            "inspect.observed_consumers",
            "read_by = 'stock' AND subscription_type NOT IN ('Failover', 'Exclusive')",
            order="topic, subscription",
        )
    if unordered_subscriptions:
        first = unordered_subscriptions[0]
        raise Terminal(
            f"{len(unordered_subscriptions)} subscription(s) for standard consumers are used as a type that no gate keeps in order, first "
            f"{first['subscription']} of {first['topic']} as {first['subscription_type']}; have its consumers subscribe as Failover or Exclusive"
        )
    if breached := [gate for gate in shut_gates if gate["breached_at"] is not None]:
        first = breached[0]
        raise Terminal(
            f"{len(breached)} gate(s) are breached, first that of segment {first['segment_id']} of {first['topic']} for "
            f"{first['subscription']}: a consumer has acknowledged the barrier; set the crypto failure action of its consumers to FAIL"
        )
    overdue_gates = [
        gate
        for gate in shut_gates
        if gate["overdue_seconds"] is not None and gate["overdue_seconds"] > OVERDUE_SECONDS
    ]
    if overdue_gates:
        first = overdue_gates[0]
        reason = f": {first['last_error']}" if first["last_error"] else ""
        raise Terminal(
            f"{len(overdue_gates)} gate(s) could be open and are not, for {duration(float(first['overdue_seconds']))} that of segment "
            f"{first['segment_id']} of {first['topic']} for {first['subscription']}{reason}; see docs/runbook/CleaveGateShut.md"
        )
    if not shut_gates:
        return "none is shut"
    return f"{len(shut_gates)} wait until older segments are read"


def set_aside(cleave: Application) -> str:
    """Check that no batch over many topics skips a topic or another subject at present (`is_current` of
    `inspect.set_aside`). Raises Note with the number of skipped subjects, and the newest.
    """
    rows = read(cleave, "inspect.set_aside", "is_current", order="last_at DESC")
    if rows:
        newest = rows[0]
        raise Note(
            f"batches leave out {len(rows)} subject(s), such as {newest['subject']} of {newest['batch']}: {newest['reason']}; "
            "inspect.set_aside has all of them"
        )
    return "no batch leaves anything out"
