"""Set and remove what is stored at a level of policy: one document read, changed and written in one transaction. Or only ask
which topics would be treated differently at once.

A level is `cluster`, a namespace (`tenant/namespace`), or a topic's full name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, text

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.domain.decision import Decision
from controller.domain.errors import InvalidPolicy
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy, PolicyLevel, PolicyOverride
from controller.store.decisions import situations
from controller.store.postgres.engine import Store
from controller.store.topics import policies, topics

log = telemetry.get_logger(__name__)

Document = dict[str, Any]
MOST_TOPICS = 500
"""Topics that are asked, of a cluster or namespace that has more: those with the lowest ids."""
_TOPICS = text("""
    SELECT topic_id, name FROM cleave.topic
     WHERE state = 'live' AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace) ORDER BY topic_id LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class Changed:
    """What was stored at the level, and what is; of the cluster every knob."""

    before: Document
    after: Document


@dataclass(frozen=True, slots=True)
class OtherActs:
    """A topic, what would be done to it now, and what under the changed policy."""

    topic: str
    now: tuple[Decision, ...]
    then: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Consequences:
    """What the level has and would have, the topics it would make a difference to at once, and how many were asked."""

    changed: Changed
    others: tuple[OtherActs, ...]
    asked: int


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
        found = change_in(tx, level, changed, actor=actor)
    if found.before != found.after and not store.takes_back:
        knobs = sorted(
            knob
            for knob in found.before.keys() | found.after.keys()
            if found.before.get(knob) != found.after.get(knob)
        )
        log.info("policy set", level=level, actor=actor, knobs=knobs)
    return found


def change_in(
    tx: Connection, level: str, changed: Callable[[Document], Mapping[str, Any]], *, actor: str
) -> Changed:
    """The same in a transaction that is open."""
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


def preview(
    tx: Connection,
    planes: Mapping[str, DataPlane],
    level: str,
    changed: Callable[[Document], Mapping[str, Any]],
    *,
    actor: str,
) -> Consequences:
    """Asks in a transaction that the caller takes back: the same situations twice, at one instant, so that what differs is the
    policy's doing alone. Raises what the change itself would.
    """
    names = _topics(tx, level)
    capabilities = {name: plane.capabilities for name, plane in planes.items()}
    now = situations.load_situations(tx, names, capabilities)
    written = change_in(tx, level, changed, actor=actor)
    then = situations.load_situations(tx, names, capabilities)
    others = []
    for topic_id in sorted(now.keys() & then.keys()):
        before, after = now[topic_id], replace(then[topic_id], now=now[topic_id].now)
        acts, instead = decide(before).decisions, decide(after).decisions
        if acts != instead:
            others.append(OtherActs(names[topic_id], acts, instead))
    return Consequences(written, tuple(others), len(now))


def _topics(tx: Connection, level: str) -> dict[int, str]:
    kind = kind_of(level)
    if kind is PolicyLevel.TOPIC:
        return {topics.find_topic(tx, level).topic_id: level}
    namespace = level if kind is PolicyLevel.NAMESPACE else None
    rows = tx.execute(_TOPICS, {"namespace": namespace, "limit": MOST_TOPICS})
    return {row.topic_id: row.name for row in rows}
