"""Set and remove what is stored at a level of policy: one document read, changed and written in one transaction.

A level is `cluster`, a namespace (`tenant/namespace`), or a topic's full name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from controller.domain.errors import InvalidPolicy
from controller.domain.policy import AutoScalePolicy, PolicyLevel, PolicyOverride
from controller.store.postgres.engine import Store
from controller.store.topics import policies, topics

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changed:
    """What was stored at the level, and what is; of the cluster every knob."""

    before: Document
    after: Document


def kind_of(level: str) -> PolicyLevel:
    """Of which kind the level is."""
    if level == PolicyLevel.CLUSTER:
        return PolicyLevel.CLUSTER
    return PolicyLevel.TOPIC if "://" in level else PolicyLevel.NAMESPACE


def change(
    store: Store, level: str, changed: Callable[[Document], Mapping[str, Any]], *, actor: str
) -> Changed:
    """Write the level's document anew, as `changed` makes it of the present one; an empty one removes everything.

    Raises TopicNotFound, TopicNotLive, InvalidPolicy where it does not fit the levels above, LostRace.
    """
    with store.transaction() as tx:
        before = stored(tx, level)
        _write(tx, level, dict(changed(dict(before))), actor)
        return Changed(before, stored(tx, level))


def stored(tx: Connection, level: str) -> Document:
    """What is stored there; as it is where it cannot be read as a policy, so that it can be seen and set right. Raises TopicNotFound."""
    kind = kind_of(level)
    if kind is PolicyLevel.CLUSTER:
        document = policies.stored_document(tx)
        return _as_written(lambda: AutoScalePolicy.from_document(document).to_document(), document)
    if kind is PolicyLevel.TOPIC:
        document = policies.stored_document(tx, topic_id=topics.find_topic(tx, level).topic_id)
    else:
        document = policies.stored_document(tx, namespace=level)
    return _as_written(lambda: PolicyOverride.from_document(document).to_document(), document)


def _as_written(read: Callable[[], Document], written: Document) -> Document:
    try:
        return read()
    except InvalidPolicy:
        return written


def _write(tx: Connection, level: str, document: Document, actor: str) -> None:
    kind = kind_of(level)
    if kind is PolicyLevel.CLUSTER:
        policies.set_cluster(tx, AutoScalePolicy.from_document(document), actor=actor)
        return
    override = PolicyOverride.from_document(document)
    if kind is PolicyLevel.TOPIC:
        topic_id = topics.find_topic(tx, level).topic_id
        policies.set_topic(tx, topic_id, override if document else None, actor=actor)
    else:
        policies.set_namespace(tx, level, override, actor=actor)
