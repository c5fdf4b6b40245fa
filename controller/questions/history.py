"""History of a topic: layouts by epoch, lineage of segments, and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from controller.actions.fields import TopicName
from controller.domain.whole_numbers import MOST
from controller.questions.question import TOPIC, Filter, Question, Row, read_statement, span_filters

SegmentId = Annotated[int, Field(ge=0, le=MOST, description="Id of the segment.", examples=[0])]
_ONE_SEGMENT = Filter("segment_id = :segment_id", SegmentId, "Only this segment.", [0])


_OVER_TIME = """
    SELECT s.segment_id, s.hash_range, s.range_start, s.range_end, greatest(s.created_at, :since) AS created_at, s.sealed_at
      FROM inspect.segments s
     WHERE s.topic_id = :topic_id AND coalesce(s.sealed_at, 'infinity') >= :since
     ORDER BY s.created_epoch DESC, s.range_start LIMIT :limit
"""
# A record holds until the next one, so the last record before `since` counts too.
_WITH_RECORDS = """
    WITH record AS (
        SELECT h.*
          FROM inspect.load_history h
         WHERE h.topic_id = :topic_id AND h.segment_id = ANY (CAST(:segments AS bigint[])) AND h.recorded_at >= :since
         UNION ALL
        SELECT before.*
          FROM unnest(CAST(:segments AS bigint[])) AS drawn (segment_id)
         CROSS JOIN LATERAL (
               SELECT * FROM inspect.load_history h
                WHERE h.topic_id = :topic_id AND h.segment_id = drawn.segment_id AND h.recorded_at < :since
                ORDER BY h.recorded_at DESC LIMIT 1) before
    )"""
# The thresholds are those in force now, so past rates are compared with the present policy.
_CELLS = f"""{_WITH_RECORDS}, rated AS (
        SELECT segment_id, recorded_at,
               CAST(floor(extract(epoch FROM recorded_at)::float8 / CAST(:cell_seconds AS float8)) AS bigint) AS cell,
               greatest(msg_rate_in / nullif(CAST(:msg_rate_in AS float8), 0), byte_rate_in / nullif(CAST(:byte_rate_in AS float8), 0),
                        msg_rate_out / nullif(CAST(:msg_rate_out AS float8), 0),
                        byte_rate_out / nullif(CAST(:byte_rate_out AS float8), 0)) AS ratio
          FROM record
    )
    SELECT segment_id, cell, max(ratio) AS highest, (max(ARRAY[extract(epoch FROM recorded_at)::float8, ratio]))[2] AS last  -- without a sort
      FROM rated GROUP BY segment_id, cell ORDER BY segment_id, cell
"""  # noqa: S608 - constants only
# A page has fewer pixels than records. So a line keeps two records of each part of the time: the peak and the last one.
_RECORDS = f"""{_WITH_RECORDS}, rated AS (
        SELECT segment_id, greatest(recorded_at, :since) AS recorded_at,
               CASE CAST(:metric AS text) WHEN 'msg_rate_in' THEN msg_rate_in WHEN 'byte_rate_in' THEN byte_rate_in
                                          WHEN 'msg_rate_out' THEN msg_rate_out ELSE byte_rate_out END AS rate
          FROM record
    ), hottest AS (
        SELECT segment_id, max(rate) AS peak, count(*) OVER () AS segments
          FROM rated GROUP BY segment_id ORDER BY peak DESC NULLS LAST, segment_id LIMIT :lines
    ), placed AS (
        SELECT r.*, h.peak, h.segments,
               width_bucket(extract(epoch FROM r.recorded_at)::float8, extract(epoch FROM CAST(:since AS timestamptz))::float8,
                            extract(epoch FROM CAST(:now AS timestamptz))::float8,
                            CAST(CAST(:parts AS bigint) / least(h.segments, :lines) AS integer)) AS part
          FROM rated r JOIN hottest h USING (segment_id)
    ), ranked AS (
        SELECT *, row_number() OVER (PARTITION BY segment_id, part ORDER BY rate DESC NULLS LAST, recorded_at) AS from_peak,
               row_number() OVER (PARTITION BY segment_id, part ORDER BY recorded_at DESC) AS from_last
          FROM placed
    )
    SELECT segment_id, recorded_at, rate, segments FROM ranked
     WHERE from_peak = 1 OR from_last = 1 ORDER BY peak DESC NULLS LAST, segment_id, recorded_at
"""  # noqa: S608 - constants only


def segments_over_time(tx: Connection, topic_id: int, since: datetime, limit: int) -> list[Row]:
    """Return at most `limit` segments that were ACTIVE at `since` or later, including pruned segments, the newest first. Column
    `created_at` is `since` for older segments; `sealed_at` is None for ACTIVE segments.
    """
    return read_statement(tx, _OVER_TIME, topic_id=topic_id, since=since, limit=limit)


def load_cells(
    tx: Connection,
    topic_id: int,
    segments: Sequence[int],
    since: datetime,
    thresholds: Mapping[str, Any],
    *,
    cell_seconds: float,
) -> list[Row]:
    """Return the load records of `segments` by cell, ordered by segment and cell. A record's ratio is the highest of its rates, each
    divided by its threshold; `highest` and `last` are the highest ratio and the last ratio in the cell. `thresholds` has a value for each
    of the four rates; a rate whose threshold is None or 0 does not count.

    Column `cell` is the number of the cell of `cell_seconds`, counted from the Unix epoch; a cell without a record has no row. A segment's
    last record before `since` is included, in its own cell.
    """
    return read_statement(
        tx,
        _CELLS,
        topic_id=topic_id,
        segments=list(segments),
        since=since,
        cell_seconds=cell_seconds,
        **thresholds,
    )


def load_records(
    tx: Connection,
    topic_id: int,
    segments: Sequence[int],
    metric: str,
    since: datetime,
    now: datetime,
    *,
    lines: int,
    parts: int,
) -> list[Row]:
    """Return load records of the `lines` segments, out of `segments`, with the highest peaks of the rate `metric`
    (`msg_rate_in`, `byte_rate_in`, `msg_rate_out` or `byte_rate_out`): the segment with the highest peak first, the
    records of a segment by time. The records are those since `since`, and the last one before `since` with `since` as
    its time. For each segment the time from `since` to `now` is divided into `parts` divided by the number of returned
    segments; of each part only the record with the highest rate and the last record are returned. Column `segments` is
    the number of all segments with records.
    """
    return read_statement(
        tx,
        _RECORDS,
        topic_id=topic_id,
        segments=list(segments),
        metric=metric,
        since=since,
        now=now,
        lines=lines,
        parts=parts,
    )


LIST_LAYOUT_CHANGES = Question(
    "history layouts",
    "/topics/{topic}/layout/changes",
    "inspect.layout_changes",
    "List the layout changes of a topic: the change of each epoch, its actor and its reason, newest first.",
    {"epoch": int},
    {
        "topic": TOPIC,
        "epoch": Filter(
            "epoch = ANY (CAST(:epoch AS bigint[]))",
            Annotated[int, Field(ge=0, le=MOST)],
            "Only these epochs.",
            [[7]],
            most=1000,
        ),
    },
    descending=True,
    table=("epoch", "committed_at", "kind", "sealed", "created", "pruned", "origin", "actor", "reason"),
)
LIST_SEGMENTS = Question(
    "history segments",
    "/topics/{topic}/segments/history",
    "inspect.segments",
    "List all segments that a topic ever had, including pruned segments, with their parents and children.",
    {"segment_id": int},
    {
        "topic": TOPIC,
        "segment_id": Filter(
            "segment_id = ANY (CAST(:segment_id AS bigint[]))",
            SegmentId,
            "Only these segments.",
            [[0]],
            most=10_000,
        ),
    },
    table=("segment_id", "hash_range", "state", "parents", "children", "created_at", "sealed_at"),
)
SHOW_LINEAGE = Question(
    "history lineage",
    "/topics/{topic}/segments/{segment_id}/lineage",
    "inspect.lineage(:topic, :segment_id)",
    "List the ancestors and descendants of a segment, ancestors first, including pruned segments.",
    {"depth": int, "segment_id": int},
    {"topic": Filter(None, TopicName), "segment_id": Filter(None, SegmentId)},
    of_past=True,
    missing="topic {topic} never had a segment {segment_id}; `cleave history segments` lists its segments",
    table=("segment_id", "depth", "relation", "hash_range", "state", "created_epoch", "sealed_epoch"),
)
LIST_LOAD = Question(
    "history load-now",
    "/topics/{topic}/load",
    "inspect.load_now",
    "List the latest load of each ACTIVE segment, with the thresholds in force.",
    {"segment_id": int},
    {"topic": TOPIC, "segment_id": _ONE_SEGMENT},
    table=(
        "segment_id",
        "hash_range",
        "msg_rate_in",
        "byte_rate_in",
        "hottest_ratio",
        "hottest_metric",
        "is_stale",
    ),
)
LIST_LOAD_HISTORY = Question(
    "history load",
    "/topics/{topic}/load/history",
    "inspect.load_history",
    "List load records as they were written, newest first.",
    {"recorded_at": datetime, "segment_id": int},
    {**span_filters("recorded_at"), "topic": TOPIC, "segment_id": _ONE_SEGMENT},
    descending=True,
    table=("segment_id", "hash_range", "recorded_at", "msg_rate_in", "byte_rate_in", "source"),
)
LIST_HOT_KEYS = Question(
    "history hot-keys",
    "/topics/{topic}/hot-keys",
    "inspect.hot_keys",
    "Show the part of each segment with the most load, and the load that no split can divide.",
    {"segment_id": int},
    {"topic": TOPIC},
    default_limit=10_000,
    is_command=False,
)
QUESTIONS = (
    LIST_LAYOUT_CHANGES,
    LIST_SEGMENTS,
    SHOW_LINEAGE,
    LIST_LOAD,
    LIST_LOAD_HISTORY,
    LIST_HOT_KEYS,
)
