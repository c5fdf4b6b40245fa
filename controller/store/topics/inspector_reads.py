"""Reads topics, layouts and policies through schema `inspect` only, for logins in role `cleave_inspector`.

The other modules of the store read tables, which that role may not read. Each read is one statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from controller.domain.errors import InvalidInput, InvalidPolicy, NotFound, TopicNotFound
from controller.domain.layout import SegmentLayout
from controller.domain.policy import PARAMETERS, AutoScalePolicy
from controller.store.topics.layouts import SEGMENT_COLUMNS, layout_of

_NOW = text(f"""
    SELECT t.epoch, t.next_segment_id, {SEGMENT_COLUMNS}, s.parents AS parent_ids
      FROM inspect.topics t
      LEFT JOIN inspect.segments s ON s.topic_id = t.topic_id AND s.pruned_epoch IS NULL
     WHERE t.topic_id = :topic_id
""")  # noqa: S608 - constants only, as below
_THEN = f"""
    SELECT c.epoch, {SEGMENT_COLUMNS}, s.parents AS parent_ids,
           (SELECT max(m.segment_id) + 1 FROM inspect.segments m
             WHERE m.topic_id = c.topic_id AND m.created_epoch <= c.epoch) AS next_segment_id
      FROM (SELECT topic_id, epoch FROM inspect.layout_changes WHERE topic_id = :topic_id AND {{moment}}
             ORDER BY epoch DESC LIMIT 1) c
      LEFT JOIN inspect.segments s ON s.topic_id = c.topic_id AND s.created_epoch <= c.epoch
            AND (s.pruned_epoch IS NULL OR s.pruned_epoch > c.epoch)
"""  # noqa: S608
_TOPIC = text("""
    SELECT topic_id, topic AS name, state, data_plane, properties
      FROM inspect.topics WHERE topic = :name AND state <> 'deleted'
""")
_WAS_THERE = text("SELECT EXISTS (SELECT FROM inspect.topics WHERE topic = :name)")
_STORED = text("SELECT policy FROM inspect.policies WHERE level = :level AND name IS NOT DISTINCT FROM :name")
_EFFECTIVE = text("SELECT parameter, value, level FROM inspect.policy_effective WHERE topic_id = :topic_id")


@dataclass(frozen=True, slots=True)
class InspectedTopic:
    """A topic as read from schema `inspect`."""

    topic_id: int
    name: str
    state: str
    data_plane: str
    properties: Mapping[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """Name and id of the topic, as the filters of a question use them."""
        return {"topic": self.name, "topic_id": self.topic_id}


def find_topic(tx: Connection, name: str) -> InspectedTopic:
    """Return the topic of that name, in any state except deleted. Raises TopicNotFound."""
    row = tx.execute(_TOPIC, {"name": name}).one_or_none()
    if row is None:
        raise _not_there(name)
    return InspectedTopic(**row._mapping)


def demand_known(tx: Connection, name: str) -> str:
    """Return the name if a topic has or had the name, so that its history can be queried. Raises TopicNotFound."""
    if not tx.execute(_WAS_THERE, {"name": name}).scalar_one():
        raise _not_there(name)
    return name


def load_layout(tx: Connection, topic: InspectedTopic) -> SegmentLayout:
    """Return the present layout, with the sealed segments that are not pruned; empty for a topic that is being created."""
    return layout_of(tx.execute(_NOW, {"topic_id": topic.topic_id}).all())


def layout_at(tx: Connection, topic: InspectedTopic, at: datetime | int) -> SegmentLayout:
    """Return the layout at an epoch (int), or the last layout committed by a time (aware datetime), with the segments that were not pruned
    then.

    Past reservations of ids are not stored: `next_segment_id` is one above the highest id of a segment created until then. Raises
    InvalidInput for a time without a zone, and NotFound if the topic had no layout at that time, or if the epoch was skipped or does not
    exist yet.
    """
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidInput(f"{at.isoformat()} has no time zone; add one, for example +00:00")
        moment, missing = (
            "committed_at <= :at",
            f"topic {topic.name} has no layout before {at.isoformat()}",
        )
    else:
        moment, missing = "epoch = :at", f"topic {topic.name} has no epoch {at}"
    rows = tx.execute(text(_THEN.format(moment=moment)), {"topic_id": topic.topic_id, "at": at}).all()
    if not rows:
        raise NotFound(f"{missing}; its history is in inspect.layout_changes")
    return layout_of(rows)


def stored_policy(tx: Connection, level: str, name: str | None) -> dict[str, Any]:
    """Return the values of a level, by parameter. `level` is `cluster`, `namespace` or `topic`; `name` is the name of
    the namespace or topic, and None for the cluster.

    For a namespace or topic, the result has only the parameters that the level stores; empty if the level stores
    nothing, or if the namespace or topic does not exist. For the cluster, the result has all parameters, with the
    default of each parameter that is not stored. A cluster policy with an unknown parameter or a value of a wrong
    type is returned as stored, without defaults.
    """
    stored = set_parameters(tx, level, name)
    if level == "cluster":
        try:
            return dict(AutoScalePolicy.from_document(stored).to_document())
        except InvalidPolicy:
            return stored  # the caller shows the invalid policy, so that a person can correct it
    return stored


def set_parameters(tx: Connection, level: str, name: str | None) -> dict[str, Any]:
    """Return the values that a level stores, by parameter, in the order of declaration, without null values. The values are not checked.
    `level` is `cluster`, `namespace` or `topic`; `name` is the namespace or topic, None for the cluster. Empty if the level stores
    nothing, or if the namespace or topic does not exist.
    """
    stored = tx.execute(_STORED, {"level": level, "name": name}).scalar_one_or_none() or {}
    return {
        parameter: stored[parameter]
        for parameter in sorted(stored, key=_order_of)
        if stored[parameter] is not None
    }


def effective_policy(tx: Connection, topic: InspectedTopic) -> list[dict[str, Any]]:
    """Return a row for each parameter, in the order of declaration, with keys `parameter`, `value` (the value in force) and `level`
    (`topic`, `namespace`, `cluster` or `default`). Values are as stored, and not checked.
    """
    rows = tx.execute(_EFFECTIVE, {"topic_id": topic.topic_id}).mappings()
    return sorted((dict(row) for row in rows), key=lambda row: _order_of(row["parameter"]))


def _order_of(parameter: str) -> tuple[int, str]:
    """Return the sort key of a parameter: the order of declaration, then unknown parameters of newer versions by name."""
    declared = list(PARAMETERS)
    return (declared.index(parameter) if parameter in declared else len(declared), parameter)


def _not_there(name: str) -> TopicNotFound:
    return TopicNotFound(f"topic {name} does not exist; create it or check the name")
