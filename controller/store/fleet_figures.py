"""What is measured of the fleet, out of the inspect views: for `cleave metrics`, which serves it to Prometheus.

A login in role `cleave_inspector` may read all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from controller.store.postgres import inspection

_PATIENCE = text("SET LOCAL statement_timeout = '8s'")
"""So that a database in trouble is told as one that is away before Prometheus gives up."""
_HEALTH = "SELECT * FROM inspect.health"
_CHANGES = """
    SELECT tally, kind, because, sum(total) AS total FROM inspect.tallies GROUP BY tally, kind, because ORDER BY 1, 2, 3
"""
_SOURCES = """
    SELECT regexp_replace(source, '(@[0-9]+T[0-9]+Z)?(~[0-9]+)?$', '') AS broker, min(silent_seconds) AS silent_seconds
      FROM inspect.load_sources WHERE observed_at > clock_timestamp() - interval '24 hours' GROUP BY 1 ORDER BY 1
"""
"""A source is a start of a broker, and a log's counters in it may begin anew: each has a name of its own."""
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
_LOAD = """
    SELECT topic_id, max(hottest_ratio) FILTER (WHERE NOT is_stale) AS hottest_ratio, count(*) FILTER (WHERE is_stale) AS stale_segments
      FROM inspect.load_now WHERE topic_id = ANY (:topic_ids) GROUP BY topic_id
"""
_SUPPRESSED = {
    "at-max-segments": "split_suppressed_max_segments",
    "merge-depth": "merge_suppressed_max_depth",
}


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Of one topic. `hottest_ratio`: the largest rate over its split threshold, None where no fresh load is known."""

    topic: str
    active_segments: int
    entry_buckets: int
    stale_segments: int
    hottest_ratio: float | None
    totals: Mapping[str, int]
    """By the name of what PIP-483 counts: `auto_splits`, `auto_merges`, `split_suppressed_max_segments`,
    `merge_suppressed_max_depth`, and `rebucket_rollovers` (PIP-486).
    """


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Of everything, at one instant."""

    health: Mapping[str, float | None]
    """Column of `inspect.health` to its value."""
    totals: Sequence[tuple[str, str, str, int]]
    """What (`change`, `refusal`), its kind or lane, its origin or reason, how often so far; over all topics."""
    silent_seconds: Mapping[str, float]
    """Of each broker, or other source of samples, that was heard of within a day."""
    topics: Sequence[TopicFigures]
    topics_left_out: int


def fleet_figures(tx: Connection, *, prefix: str, most_topics: int) -> FleetFigures:
    """Everything, and each of the first `most_topics` live topics whose names begin with `prefix`, in the order of names."""
    tx.execute(_PATIENCE)
    [health] = inspection.rows(tx, _HEALTH)
    listed = inspection.rows(tx, _TOPICS, prefix=prefix, most=most_topics)
    [live] = inspection.rows(tx, _COUNT)
    return FleetFigures(
        {name: None if value is None else float(value) for name, value in health.items()},
        [
            (one["tally"], one["kind"], one["because"], int(one["total"]))
            for one in inspection.rows(tx, _CHANGES)
        ],
        {one["broker"]: float(one["silent_seconds"]) for one in inspection.rows(tx, _SOURCES)},
        list(_topics(tx, listed)),
        int(live["topics"]) - len(listed),
    )


def _topics(tx: Connection, listed: Sequence[Mapping[str, Any]]) -> Iterator[TopicFigures]:
    topic_ids = [one["topic_id"] for one in listed]
    buckets = {one["topic_id"]: one["buckets"] for one in inspection.rows(tx, _BUCKETS, topic_ids=topic_ids)}
    loads = {one["topic_id"]: one for one in inspection.rows(tx, _LOAD, topic_ids=topic_ids)}
    totals: dict[int, dict[str, int]] = {topic_id: dict.fromkeys(TOTALS, 0) for topic_id in topic_ids}
    for one in inspection.rows(tx, _TALLIES, topic_ids=topic_ids):
        if (name := _total_of(one["tally"], one["kind"], one["because"])) is not None:
            totals[one["topic_id"]][name] += int(one["total"])
    for topic in listed:
        load = loads.get(topic["topic_id"], {"hottest_ratio": None, "stale_segments": 0})
        yield TopicFigures(
            topic["topic"],
            int(topic["active_segments"]),
            int(buckets.get(topic["topic_id"], 0)),
            int(load["stale_segments"]),
            None if load["hottest_ratio"] is None else float(load["hottest_ratio"]),
            totals[topic["topic_id"]],
        )


TOTALS = ("auto_splits", "auto_merges", *_SUPPRESSED.values(), "rebucket_rollovers")
"""What is counted of each topic."""


def _total_of(tally: str, kind: str, because: str) -> str | None:
    if tally == "refusal":
        return _SUPPRESSED.get(because)
    if kind == "rebucket":
        return "rebucket_rollovers"
    return {"split": "auto_splits", "merge": "auto_merges"}.get(kind) if because == "auto" else None
