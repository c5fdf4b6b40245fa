"""`cleave hot-keys`: the hottest part of each segment, and the load that no split can divide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from controller.command_output import emit, rows_table
from controller.commands.options import AsJson, Topic
from controller.commands.server_choice import ask
from controller.domain.names import topic_name
from controller.questions.history import LIST_HOT_KEYS

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
    """Print the rows of `LIST_HOT_KEYS` for the topic, in the order of `_hottest_first`, with the advice if a segment has an unsplittable
    load. Raises InvalidInput for an invalid name, and the errors of `ask`. The help text is in `command_list`.
    """
    name = topic_name(topic)
    rows = sorted(ask(LIST_HOT_KEYS, {"topic": name}, limit=None), key=_hottest_first)
    table = rows_table([_shown(row) for row in rows], _COLUMNS, title=name)
    emit(as_json, {"topic": name, "segments": rows}, _with_advice(table, rows))


def _hottest_first(row: Mapping[str, Any]) -> tuple[float, int]:
    """Return the sort key of a segment's row: by unsplittable load, or without one by the load of the hottest part, the highest first, then
    by id. Segments with neither load are last.
    """
    load = row["load_on_hottest"] if row["unsplittable_load"] is None else row["unsplittable_load"]
    return (math.inf if load is None else -load, row["segment_id"])


def _with_advice(table: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the table, with the advice below if a segment has an unsplittable load."""
    if all(row["unsplittable_load"] is None for row in rows):
        return table
    return Group(table, Text(_ADVICE))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row for the table, with the loads as texts with two decimals and the share as a percentage; a value of None stays None."""
    loads = {
        name: f"{row[name]:.2f}"
        for name in ("load", "load_on_hottest", "unsplittable_load")
        if row[name] is not None
    }
    share = {} if row["share"] is None else {"share": f"{row['share']:.1%}"}
    return {**row, **loads, **share}
