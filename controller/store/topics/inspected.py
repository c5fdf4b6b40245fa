"""Topics, layouts and policies as a reader's login sees them: through schema `inspect`, and nothing else.

The rest of the store reads tables, which the role `cleave_inspector` may not. Each reading is one statement.
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
from controller.store.topics.layouts import layout_of

_COLUMNS = """
    s.segment_id, s.range_start, s.range_end, s.merge_depth, s.bucket_splits, s.created_epoch, s.sealed_epoch,
    s.created_at, s.sealed_at, s.legacy_topic_name, s.parents AS parent_ids
"""
_NOW = text(f"""
    SELECT t.epoch, t.next_segment_id, {_COLUMNS}
      FROM inspect.topics t
      LEFT JOIN inspect.segments s ON s.topic_id = t.topic_id AND s.pruned_epoch IS NULL
     WHERE t.topic_id = :topic_id
""")  # noqa: S608 - constants only, as below
_THEN = f"""
    SELECT c.epoch, {_COLUMNS},
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
    """A topic as it was read."""

    topic_id: int
    name: str
    state: str
    data_plane: str
    properties: Mapping[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """The topic as the filters of a question name it."""
        return {"topic": self.name, "topic_id": self.topic_id}


def find_topic(tx: Connection, name: str) -> InspectedTopic:
    """The topic that has the name now, in whatever state but deleted. Raises TopicNotFound."""
    row = tx.execute(_TOPIC, {"name": name}).one_or_none()
    if row is None:
        raise _not_there(name)
    return InspectedTopic(**row._mapping)


def demand_known(tx: Connection, name: str) -> str:
    """The name, if a topic has it or once had it: its history can be asked for. Raises TopicNotFound."""
    if not tx.execute(_WAS_THERE, {"name": name}).scalar_one():
        raise _not_there(name)
    return name


def load_layout(tx: Connection, topic: InspectedTopic) -> SegmentLayout:
    """The present layout."""
    return layout_of(tx.execute(_NOW, {"topic_id": topic.topic_id}).all())


def layout_at(tx: Connection, topic: InspectedTopic, at: datetime | int) -> SegmentLayout:
    """The layout at an epoch (int) or at an instant (aware datetime), segments pruned since included.

    A segment row knows the epochs in which it was created, sealed and pruned, and `layout_change` knows when each epoch was
    committed; so it is a selection, and nothing about the past is stored twice. Reserved ids leave no trace in the past:
    `next_segment_id` is one above the last segment made until then. Raises NotFound when the topic had no layout then, or
    the epoch was skipped or is still to come.
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
    """What is stored at a level (`cluster`, `namespace`, `topic`); of the cluster every parameter, if it can be read."""
    found = set_parameters(tx, level, name)
    if level == "cluster":
        try:
            return dict(AutoScalePolicy.from_document(found).to_document())
        except InvalidPolicy:
            return found  # to be seen, and set right
    return found


def set_parameters(tx: Connection, level: str, name: str | None) -> dict[str, Any]:
    """The parameters that a level sets itself, in the order of declaration; of the cluster those that are not their defaults."""
    found = tx.execute(_STORED, {"level": level, "name": name}).scalar_one_or_none() or {}
    return {
        parameter: found[parameter] for parameter in sorted(found, key=_place) if found[parameter] is not None
    }


def effective_policy(tx: Connection, topic: InspectedTopic) -> list[dict[str, Any]]:
    """Each parameter in force with its value and the level it comes from, in the order of declaration."""
    rows = tx.execute(_EFFECTIVE, {"topic_id": topic.topic_id}).mappings()
    return sorted((dict(row) for row in rows), key=lambda row: _place(row["parameter"]))


def _place(parameter: str) -> tuple[int, str]:
    """Where a parameter stands; one of a newer program's at the end."""
    known = list(PARAMETERS)
    return (known.index(parameter) if parameter in known else len(known), parameter)


def _not_there(name: str) -> TopicNotFound:
    return TopicNotFound(f"topic {name} does not exist; create it or check the name")
