"""Set and remove what is stored at a level of policy: one document read, changed and written in one transaction. Or only ask
which topics would be treated differently at once, which writes nothing and holds nobody up.

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
from controller.domain.policy import AutoScalePolicy, PolicyLevel, PolicyOverride, resolve, validate
from controller.store.decisions import situations
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import policies, topics

log = telemetry.get_logger(__name__)

Document = dict[str, Any]
Merge = Callable[[Document], Mapping[str, Any]]
"""Returns the document that a level is to have, from the present document."""
MOST_TOPICS = 500
"""Topics that are asked, of a cluster or namespace that has more: spread evenly over their ids."""
_TOPICS = text("""
    WITH numbered AS (
        SELECT topic_id, name, row_number() OVER (ORDER BY topic_id) - 1 AS number, count(*) OVER () AS topics
          FROM cleave.topic WHERE state = 'live' AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace))
    SELECT topic_id, name, topics FROM numbered
     WHERE number % greatest(1, (topics + :most - 1) / :most) = 0 ORDER BY topic_id
""")


@dataclass(frozen=True, slots=True)
class Changed:
    """What was stored at the level, and what is; of the cluster every parameter."""

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
    """What the level has and would have, the topics it would make a difference to at once, how many were asked, of how many."""

    changed: Changed
    others: tuple[OtherActs, ...]
    asked: int
    topics: int


def kind_of(level: str) -> PolicyLevel:
    """Of which kind the level is."""
    if level == PolicyLevel.CLUSTER:
        return PolicyLevel.CLUSTER
    return PolicyLevel.TOPIC if "://" in level else PolicyLevel.NAMESPACE


def change(store: Store, level: str, changed: Merge, *, actor: str) -> Changed:
    """Write the level's document anew, as `changed` makes it of the present one; an empty one removes everything.

    Raises TopicNotFound, TopicNotLive, InvalidPolicy where it does not fit the levels above, LostRace.
    """
    with store.transaction() as tx:
        found = change_in(tx, level, changed, actor=actor)
    if found.before != found.after and not store.rolls_back:
        parameters = sorted(
            parameter
            for parameter in found.before.keys() | found.after.keys()
            if found.before.get(parameter) != found.after.get(parameter)
        )
        log.info("policy set", level=level, actor=actor, parameters=parameters)
    return found


def change_in(tx: Connection, level: str, changed: Merge, *, actor: str) -> Changed:
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
    store: Store,
    planes: Mapping[str, DataPlane],
    level: str,
    changed: Merge,
) -> Consequences:
    """Asks with the changed policy in place of the one in force: the same situations twice, at one instant, so that what differs
    is the policy's doing alone. Nothing is written or locked. Raises what the change itself would, but LostRace.
    """
    capabilities = {name: plane.capabilities for name, plane in planes.items()}
    with snapshot(store) as tx:
        before = stored(tx, level)
        after = _demand_valid(tx, level, dict(changed(dict(before))))
        names, topics_in_all = _topics(tx, level)
        instead = policies.in_force_with(tx, names, kind_of(level), after)
        now = situations.load_situations(tx, names, capabilities)
        then = situations.load_situations(tx, names, capabilities, instead=instead)
    others = []
    for topic_id in sorted(now.keys() & then.keys()):
        acts = decide(now[topic_id]).decisions
        instead_of_them = decide(replace(then[topic_id], now=now[topic_id].now)).decisions
        if acts != instead_of_them:
            others.append(OtherActs(names[topic_id], acts, instead_of_them))
    return Consequences(Changed(before, after), tuple(others), len(now), topics_in_all)


def _demand_valid(tx: Connection, level: str, document: Document) -> Document:
    """The document as it would be stored. Raises InvalidPolicy, TopicNotFound, TopicNotLive."""
    kind = kind_of(level)
    if kind is PolicyLevel.CLUSTER:
        policy = AutoScalePolicy.from_document(document)
        validate(policy)
        return policy.to_document()
    override = PolicyOverride.from_document(document)
    cluster = policies.get_cluster(tx).policy
    if kind is PolicyLevel.TOPIC:
        topics.demand_live(level, topics.find_topic(tx, level).state)
        namespace = policies.get_namespace(tx, topics.namespace_of(level)).override
        validate(resolve(cluster, namespace, override))
    else:
        validate(resolve(cluster, override))
    return override.to_document()


def _topics(tx: Connection, level: str) -> tuple[dict[int, str], int]:
    """Those to be asked by id, and how many the level has."""
    kind = kind_of(level)
    if kind is PolicyLevel.TOPIC:
        return {topics.find_topic(tx, level).topic_id: level}, 1
    namespace = level if kind is PolicyLevel.NAMESPACE else None
    rows = tx.execute(_TOPICS, {"namespace": namespace, "most": MOST_TOPICS}).all()
    return {row.topic_id: row.name for row in rows}, rows[0].topics if rows else 0
