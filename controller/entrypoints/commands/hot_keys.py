"""`cleave hot-keys`: which part of each segment has the most load, and what no split can take away. Reads schema `inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from controller.entrypoints.commands.options import AsJson, Topic, topic_name
from controller.entrypoints.output import emit, rows_table
from controller.entrypoints.reading import reading
from controller.store.postgres import inspection
from controller.store.topics import inspected

_HOTTEST = """
    SELECT l.segment_id, l.hash_range, l.hottest_ratio AS load, coalesce(k.hottest, alone.hash_range) AS hottest,
           coalesce(k.share, alone.share) AS share, coalesce(k.load_on_hottest, alone.share * l.hottest_ratio) AS load_on_hottest,
           k.messages, k.age_seconds, k.is_fresh, w.value AS unsplittable_load
      FROM inspect.load_now l
      LEFT JOIN LATERAL (SELECT l.hash_range, 1 AS share WHERE left(l.hash_range, 4) = right(l.hash_range, 4)) alone ON true
      LEFT JOIN inspect.key_sketches k ON k.topic_id = l.topic_id AND k.segment_id = l.segment_id
      LEFT JOIN (SELECT segment_id, max(value) AS value FROM inspect.why_not
                  WHERE topic = :topic AND reason = 'unsplittable' GROUP BY segment_id) w ON w.segment_id = l.segment_id
     WHERE l.topic = :topic AND (k.segment_id IS NOT NULL OR w.segment_id IS NOT NULL)
     ORDER BY coalesce(w.value, k.load_on_hottest) DESC NULLS LAST, l.segment_id"""
_COLUMNS = (
    "segment_id",
    "hash_range",
    "load",
    "hottest",
    "share",
    "load_on_hottest",
    "messages",
    "age_seconds",
    "unsplittable_load",
)
_ADVICE = (
    "Loads are in units of a segment's capacity. No split takes away an unsplittable load: it is on one key, or on keys of"
    " one hash. Give the key's messages more keys (a salt), or give it a topic of its own."
)


def hot_keys(topic: Topic, as_json: AsJson = False) -> None:
    with reading() as tx:
        row = inspected.find_topic(tx, topic_name(topic))
        rows = inspection.rows(tx, _HOTTEST, topic=row.name)
    table = rows_table([_shown(one) for one in rows], _COLUMNS, title=row.name)
    emit(as_json, {"topic": row.name, "segments": rows}, _with_advice(table, rows))


def _with_advice(table: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    if all(one["unsplittable_load"] is None for one in rows):
        return table
    return Group(table, Text(_ADVICE))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    loads = {
        name: f"{row[name]:.2f}"
        for name in ("load", "load_on_hottest", "unsplittable_load")
        if row[name] is not None
    }
    share = {} if row["share"] is None else {"share": f"{row['share']:.1%}"}
    return {**row, **loads, **share}
