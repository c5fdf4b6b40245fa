"""Reads the figures of the fleet from the inspect views, for `cleave metrics`, which serves them to Prometheus.

A login in role `cleave_inspector` suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from controller.store.postgres import inspection

_STATEMENT_TIMEOUT = text("SET LOCAL statement_timeout = '8s'")
"""The limit makes a slow database count as unavailable before the scrape of Prometheus times out."""
_HEALTH = "SELECT * FROM inspect.health"
_CHANGES = """
    SELECT tally, kind, because, sum(total) AS total FROM inspect.tallies GROUP BY tally, kind, because ORDER BY 1, 2, 3
"""
_SOURCES = """
    SELECT regexp_replace(source, '(@[0-9]+T[0-9]+Z)?(~[0-9]+)?$', '') AS broker, min(silent_seconds) AS silent_seconds
      FROM inspect.load_sources WHERE observed_at > clock_timestamp() - interval '24 hours' GROUP BY 1 HAVING sum(segments) > 0 ORDER BY 1
"""
"""A source names one start of a broker and, if the counters of a log began again, also that beginning. The query removes both
suffixes from the broker's name. A broker that no load record of an ACTIVE segment names is left out: it may be healthy and serve no segment.
"""
_TOPICS = """
    SELECT topic, topic_id, active_segments FROM inspect.topics
     WHERE state = 'live' AND starts_with(topic, :prefix) ORDER BY topic LIMIT :most
"""
_COUNT = "SELECT count(*) AS topics FROM inspect.topics WHERE state = 'live'"
_TALLIES = """
    SELECT topic_id, tally, kind, because, total FROM inspect.tallies WHERE topic_id = ANY (:topic_ids)
"""
_BUCKETS = """
    SELECT topic_id, sum(buckets) AS buckets FROM inspect.layout_now WHERE topic_id = ANY (:topic_ids) GROUP BY topic_id
"""
_READERS = """
    SELECT topic_id, shared_segments, buckets_withheld, oldest_withheld_seconds, buckets_away, oldest_away_seconds FROM inspect.readers
     WHERE topic_id = ANY (:topic_ids)
"""
_DRAINS = """
    SELECT topic_id, count(*) AS draining_segments, max(still_seconds) FILTER (WHERE NOT waits_for_parents) AS still_seconds
      FROM inspect.undrained WHERE topic_id = ANY (:topic_ids) GROUP BY topic_id
"""
_SHARDS = """
    SELECT substr(name, 7) AS shard, term FROM inspect.leases
     WHERE name LIKE 'shard/%' AND expires_at > clock_timestamp() - interval '1 hour' ORDER BY term DESC, name
"""
_APPROVALS = """
    SELECT count(*) AS pending, extract(epoch FROM clock_timestamp() - min(proposed_at)) AS oldest_seconds,
           count(*) FILTER (WHERE clock_timestamp() > expires_at - (expires_at - proposed_at) / 4) AS ending
      FROM inspect.approvals WHERE is_answerable
"""
_LOAD = """
    SELECT topic_id, max(hottest_ratio) FILTER (WHERE NOT is_stale) AS hottest_ratio, count(*) FILTER (WHERE is_stale) AS stale_segments
      FROM inspect.load_now WHERE topic_id = ANY (:topic_ids) GROUP BY topic_id
"""
QUANTILES = ("0.5", "0.95", "1")
_ENDED = """
    SELECT operation_id, kind, state, intended_at, finished_at FROM inspect.operations
     WHERE finished_at > clock_timestamp() - interval '15 minutes'
"""
_SPREAD = "percentile_cont(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY {})"
_TOOK = f"""
    SELECT kind, {_SPREAD.format("extract(epoch FROM finished_at - intended_at)")} AS seconds
      FROM ({_ENDED}) o WHERE state = 'done' GROUP BY kind ORDER BY kind
"""  # noqa: S608 - constants only
_WAITED = f"""
    SELECT {_SPREAD.format("extract(epoch FROM s.started_at - o.intended_at)")} AS seconds
      FROM ({_ENDED}) o JOIN inspect.operation_steps s ON s.operation_id = o.operation_id AND s.sequence = 1
    HAVING count(*) > 0
"""  # noqa: S608 - constants only
_STEPS = f"""
    SELECT s.step, {_SPREAD.format("extract(epoch FROM s.finished_at - s.started_at)")} AS seconds
      FROM ({_ENDED}) o JOIN inspect.operation_steps s USING (operation_id) GROUP BY s.step ORDER BY s.step
"""  # noqa: S608 - constants only
_OUTRUN = """
    SELECT coalesce(sum(outrun), 0) AS outrun FROM inspect.load_runs
     WHERE applied_at > clock_timestamp() - interval '15 minutes'
"""
_SUPPRESSED = {
    "at-max-segments": "split_suppressed_max_segments",
    "merge-depth": "merge_suppressed_max_depth",
}


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Figures of one topic. `stale_segments`: ACTIVE segments without fresh load. `hottest_ratio`: largest quotient of a
    rate and its split threshold in the other ACTIVE segments; None without fresh load. `shared_segments`: pairs of a
    subscription and a segment whose buckets several consumers own. `buckets_withheld`: owned buckets
    whose owner was requested to release them and has not done so. `buckets_away`: owned buckets whose owner is not
    connected. `draining_segments`: rows of `inspect.undrained`, pairs of a sealed segment and a stream subscription
    with consumers that has not drained it. `still_drain_seconds`: longest time for which the backlog of such a pair
    has not changed, without pairs that wait for their parents. Figures in seconds are None if there is nothing to measure.
    """

    topic: str
    active_segments: int
    entry_buckets: int
    stale_segments: int
    hottest_ratio: float | None
    shared_segments: int
    buckets_withheld: int
    oldest_withheld_seconds: float | None
    buckets_away: int
    oldest_away_seconds: float | None
    draining_segments: int
    still_drain_seconds: float | None
    totals: Mapping[str, int]
    """Counters by their names in PIP-483: `auto_splits`, `auto_merges`, `split_suppressed_max_segments`,
    `merge_suppressed_max_depth`; and in PIP-486: `rebucket_rollovers`, `bucket_reassignments`.
    """


@dataclass(frozen=True, slots=True)
class RecentFigure:
    """One value of a figure. `of` is `operation`, `wait` or `step`, whose `labels` hold the kind or step, if any, then the quantile, and
    whose value is in seconds; or `outrun`, a number without labels.
    """

    of: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Figures of the fleet at one time."""

    health: Mapping[str, float | None]
    """Values of `inspect.health` by column."""
    totals: Sequence[tuple[str, str, str, int]]
    """Totals over all topics: the tally (`change`, `refusal` or `bucket`), the kind or lane (`granted` for `bucket`), the origin or reason
    (the subscription for `bucket`), and the count.
    """
    silent_seconds: Mapping[str, float]
    """Seconds since the last sample of each broker, or other source, that reported within a day and that the load record of an ACTIVE
    segment names.
    """
    lease_changes: Mapping[str, int]
    """Number of times that a worker acquired the shard, for each shard that had a worker within the last hour."""
    approvals: Mapping[str, float | None]
    """Figures of pending approvals: `pending` is their number, `oldest_seconds` the longest wait, and `ending` the number of approvals
    with less than a quarter of their time left.
    """
    recent: Sequence[RecentFigure]
    topics: Sequence[TopicFigures]
    topics_left_out: int
    """Number of live topics that `topics` does not contain."""


def fleet_figures(tx: Connection, *, prefix: str, most_topics: int) -> FleetFigures:
    """Return the figures of the whole fleet, and the figures of single topics: the live topics whose names begin with
    `prefix` (empty: all), sorted by name, at most `most_topics`.

    From this call until the end of the transaction, the server cancels each statement that takes longer than 8 s, and
    `Store` then raises StoreUnavailable.
    """
    tx.execute(_STATEMENT_TIMEOUT)
    [health] = inspection.rows(tx, _HEALTH)
    topic_rows = inspection.rows(tx, _TOPICS, prefix=prefix, most=most_topics)
    [count] = inspection.rows(tx, _COUNT)
    [approvals] = inspection.rows(tx, _APPROVALS)
    return FleetFigures(
        {name: _number(value) for name, value in health.items()},
        [
            (row["tally"], row["kind"], row["because"], int(row["total"]))
            for row in inspection.rows(tx, _CHANGES)
        ],
        {row["broker"]: float(row["silent_seconds"]) for row in inspection.rows(tx, _SOURCES)},
        {row["shard"]: int(row["term"]) for row in inspection.rows(tx, _SHARDS)},
        {name: _number(value) for name, value in approvals.items()},
        _recent_figures(tx),
        list(_topics(tx, topic_rows)),
        int(count["topics"]) - len(topic_rows),
    )


def _topics(tx: Connection, topic_rows: Sequence[Mapping[str, Any]]) -> Iterator[TopicFigures]:
    """Yield the figures of each topic in these rows of `inspect.topics`, in the order of the rows. A count without a
    row to count is 0; another figure without a value is None.
    """
    topic_ids = [row["topic_id"] for row in topic_rows]
    buckets, loads, readers, drains = (
        {row["topic_id"]: row for row in inspection.rows(tx, statement, topic_ids=topic_ids)}
        for statement in (_BUCKETS, _LOAD, _READERS, _DRAINS)
    )
    totals: dict[int, dict[str, int]] = {topic_id: dict.fromkeys(TOTALS, 0) for topic_id in topic_ids}
    for row in inspection.rows(tx, _TALLIES, topic_ids=topic_ids):
        if (name := _total_of(row["tally"], row["kind"], row["because"])) is not None:
            totals[row["topic_id"]][name] += int(row["total"])
    for topic in topic_rows:
        topic_id = topic["topic_id"]
        load, reading = loads.get(topic_id, {}), readers.get(topic_id, {})
        drain = drains.get(topic_id, {})
        yield TopicFigures(
            topic=topic["topic"],
            active_segments=int(topic["active_segments"]),
            entry_buckets=int(buckets.get(topic_id, {}).get("buckets", 0)),
            stale_segments=int(load.get("stale_segments", 0)),
            hottest_ratio=_number(load.get("hottest_ratio")),
            shared_segments=int(reading.get("shared_segments", 0)),
            buckets_withheld=int(reading.get("buckets_withheld", 0)),
            oldest_withheld_seconds=_number(reading.get("oldest_withheld_seconds")),
            buckets_away=int(reading.get("buckets_away", 0)),
            oldest_away_seconds=_number(reading.get("oldest_away_seconds")),
            draining_segments=int(drain.get("draining_segments", 0)),
            still_drain_seconds=_number(drain.get("still_seconds")),
            totals=totals[topic_id],
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


TOTALS = ("auto_splits", "auto_merges", *_SUPPRESSED.values(), "rebucket_rollovers", "bucket_reassignments")
"""Names of the totals of each topic."""


def _total_of(tally: str, kind: str, because: str) -> str | None:
    """Return the name in `TOTALS` of the total to which a row of `inspect.tallies` counts; None if the row counts to
    no total. `because` is the origin of a change or the reason of a refusal. A split or merge counts only
    with the origin `auto`, a rebucket with any origin.
    """
    if tally == "refusal":
        return _SUPPRESSED.get(because)
    if tally == "bucket":
        return "bucket_reassignments"
    if kind == "rebucket":
        return "rebucket_rollovers"
    return {"split": "auto_splits", "merge": "auto_merges"}.get(kind) if because == "auto" else None


def _recent_figures(tx: Connection) -> list[RecentFigure]:
    """Return the quantiles `QUANTILES` of seconds, over the operations that finished in the last 15 minutes: of done operations by kind, of
    the wait before the first step of finished operations, and of their steps by step; and the number of load rows that were outrun by
    another writer. Runners count these figures too, but a pass of Airflow ends before Prometheus can scrape it.
    """
    [load] = inspection.rows(tx, _OUTRUN)
    return [
        *(figure for row in inspection.rows(tx, _TOOK) for figure in _spread("operation", (row["kind"],), row["seconds"])),
        *(figure for row in inspection.rows(tx, _WAITED) for figure in _spread("wait", (), row["seconds"])),
        *(figure for row in inspection.rows(tx, _STEPS) for figure in _spread("step", (row["step"],), row["seconds"])),
        RecentFigure("outrun", (), float(load["outrun"])),
    ]  # fmt: skip


def _spread(of: str, labels: tuple[str, ...], seconds: Sequence[float]) -> Iterator[RecentFigure]:
    """Yield one figure for each quantile of `QUANTILES`; `seconds` holds the values in this order."""
    for quantile, value in zip(QUANTILES, seconds, strict=True):
        yield RecentFigure(of, (*labels, quantile), float(value))
