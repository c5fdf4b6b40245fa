"""The policy of a level: each knob with what is stored there, what is in force, and where that comes from."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from controller.domain.policy import KNOBS, OVERRIDABLE_KNOBS, PolicyLevel
from controller.entrypoints.commands.options import CLUSTER, level
from controller.entrypoints.pages.desk import MOST_ROWS
from controller.services.policy_admin import kind_of
from controller.store.postgres import inspection
from controller.store.topics import inspected

_LEVELS = "SELECT level, name, actor, updated_at FROM inspect.policies ORDER BY level, name LIMIT :limit"
_HISTORY = """
    SELECT changed_at, actor, knob, was, value FROM inspect.policy_history
     WHERE level = :level AND name IS NOT DISTINCT FROM CAST(:name AS text) ORDER BY change_id DESC, knob LIMIT :limit
"""


def page(tx: Connection, name: str) -> dict[str, Any]:
    """One level. Raises InvalidInput, TopicNotFound."""
    where = level(name)
    kind = kind_of(where)
    own = None if where == CLUSTER else where
    stored = inspected.stored_policy(tx, kind.value, own)
    return {
        "level": where,
        "knobs": _knobs(tx, where, kind, stored),
        "levels": inspection.rows(tx, _LEVELS, limit=MOST_ROWS),
        "history": inspection.rows(tx, _HISTORY, level=kind.value, name=own, limit=50),
    }


def _knobs(tx: Connection, where: str, kind: PolicyLevel, stored: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a topic with what is in force and from where; above it, with what the cluster has."""
    if kind is PolicyLevel.TOPIC:
        rows = inspected.effective_policy(tx, inspected.find_topic(tx, where))
    else:
        above = inspected.stored_policy(tx, CLUSTER, None)
        here = kind.value
        rows = [
            {
                "knob": knob,
                "value": stored.get(knob, above.get(knob)),
                "level": here if knob in stored else CLUSTER,
            }
            for knob in KNOBS
        ]
    may = KNOBS if kind is PolicyLevel.CLUSTER else OVERRIDABLE_KNOBS
    return [
        row | {"stored": None if kind is PolicyLevel.CLUSTER else stored.get(row["knob"])}
        for row in rows
        if row["knob"] in may
    ]
