"""Reads and writes policies at their three levels: cluster, namespace, topic.

The document of a level is replaced as a whole after it was validated together with the levels above. A
change at a higher level can make a lower level invalid; then evaluations refuse all actions on the topic (`invalid-policy`). The
domain defines the parameters.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, TextClause, text

from controller.domain.errors import InvalidInput, LostRace
from controller.domain.names import demand_namespace
from controller.domain.policy import (
    AutoScalePolicy,
    PolicyLevel,
    PolicyOverride,
    UnreadablePolicy,
    resolve,
    validate,
)
from controller.store.postgres.stored_json import read_json
from controller.store.topics import topics


def get_cluster(tx: Connection, lock: str = "") -> AutoScalePolicy:
    """Return the complete policy of the cluster, read with the lock clause `lock`. Parameters that the document does not set have their
    defaults. Raises InvalidPolicy if the stored document is not readable.
    """
    return AutoScalePolicy.from_document(tx.execute(_CLUSTER[lock]).scalar_one())


def get_namespace(tx: Connection, namespace: str, lock: str = "") -> PolicyOverride:
    """Return the parameters that the namespace (`tenant/namespace`) overrides, possibly none, read with the lock clause `lock`. Raises
    InvalidPolicy if the stored document is not readable.
    """
    document = tx.execute(_NAMESPACE[lock], {"namespace": namespace}).scalar()
    return PolicyOverride.from_document(document or {})


def set_cluster(tx: Connection, policy: AutoScalePolicy, *, actor: str) -> None:
    """Replace the policy of the cluster, of which only the parameters that differ from their defaults are stored. The history records
    the actor. Locks the row. Raises InvalidPolicy; the replaced policy need not be readable.
    """
    validate(policy)
    default = AutoScalePolicy().to_document()
    document = {
        parameter: value for parameter, value in policy.to_document().items() if value != default[parameter]
    }
    topics.set_actor(tx, actor)
    tx.execute(_SET_CLUSTER, {"policy": json.dumps(document), "actor": actor})


def set_namespace(tx: Connection, namespace: str, override: PolicyOverride, *, actor: str) -> None:
    """Replace the override of the namespace, which must be valid together with the policy of the cluster. The history records the
    actor. Locks both rows.

    An empty override keeps the row, so that its versions never start again. Raises InvalidPolicy (also if the stored policy of the
    cluster is not readable), InvalidInput for the name of the namespace, or LostRace if another transaction has just set the first
    policy of the namespace.
    """
    cluster = get_cluster(tx, _FOR_SHARE)
    row = tx.execute(_NAMESPACE[_FOR_UPDATE], {"namespace": namespace}).one_or_none()
    validate(resolve(cluster, override))
    parameters = {
        "namespace": demand_namespace(namespace),
        "policy": json.dumps(override.to_document()),
        "actor": actor,
        "found": 0 if row is None else row.row_version,
    }
    topics.set_actor(tx, actor)
    if tx.execute(_SET_NAMESPACE, parameters).rowcount != 1:
        raise LostRace(
            f"another transaction has just set the policy of namespace {namespace}; read the policy again",
            what="policy",
        )


def set_topic(
    tx: Connection, topic_id: int, override: PolicyOverride | None, *, actor: str | None = None
) -> None:
    """Replace the override of the topic (None removes it), which must be valid together with the namespace and the cluster.

    The policy history records the actor, or the login if `actor` is None. Raises TopicNotFound, TopicNotLive or InvalidPolicy.
    """
    topic = topics.lock_live_topic(tx, topic_id)
    demand_valid(tx, topic.name, override)
    topics.set_actor(tx, actor)
    topics.update_topic(tx, topic, policy=None if override is None else override.to_document())


def stored_document(
    tx: Connection, *, namespace: str | None = None, topic_id: int | None = None
) -> dict[str, Any]:
    """Return the stored document of a topic, a namespace, or (with neither) the cluster, even if it is not a readable policy.

    Empty if no policy is set. Raises TopicNotFound.
    """
    if topic_id is not None:
        document = topics.get_topic(tx, topic_id).policy
    elif namespace is not None:
        document = tx.execute(_NAMESPACE[""], {"namespace": namespace}).scalar()
    else:
        document = tx.execute(_CLUSTER[""]).scalar_one()
    return dict(document or {})


def read_policy(cluster: str, namespace: str | None = None, topic: str | None = None) -> AutoScalePolicy:
    """Return the policy in force that results from the stored documents of the three levels, which are JSON texts (None: the level sets
    nothing). Does not validate the policy. Never raises.

    If a document is not readable (a newer version or a manual update wrote it), the result is an `UnreadablePolicy` with the level and
    the error. So no action follows a policy that is only partly understood, and other topics are not affected.
    """
    reading = PolicyLevel.CLUSTER
    try:
        policy = AutoScalePolicy.from_document(read_json(cluster))
        for level, document in ((PolicyLevel.NAMESPACE, namespace), (PolicyLevel.TOPIC, topic)):
            reading = level
            policy = resolve(policy, PolicyOverride.from_document(read_json(document or "{}")))
    except InvalidInput as error:
        return UnreadablePolicy(why=f"{reading}'s policy: {error.message}")
    return policy


def in_force(tx: Connection, topic_id: int) -> AutoScalePolicy:
    """Return the policy in force of the topic, as `read_policy` does. Raises TopicNotFound."""
    topic = topics.get_topic(tx, topic_id)
    cluster, namespace = (
        stored_document(tx),
        stored_document(tx, namespace=topics.namespace_of(topic.name)),
    )
    return read_policy(json.dumps(cluster), json.dumps(namespace), json.dumps(topic.policy or {}))


def in_force_with(
    tx: Connection, topic_ids: Collection[int], level: PolicyLevel, document: Mapping[str, Any]
) -> dict[int, AutoScalePolicy]:
    """Return the policy that would be in force for each topic if its `level` had that document, as `read_policy` does. Topics that do
    not exist are absent.
    """
    levels = tx.execute(_LEVELS, {"topic_ids": list(topic_ids)}).mappings()
    replacement = {level.value: json.dumps(dict(document))}
    return {
        row["topic_id"]: read_policy(**{name: row[name] for name in PolicyLevel} | replacement)
        for row in levels
    }


def demand_valid(tx: Connection, topic: str, override: PolicyOverride | None) -> None:
    """Raise InvalidPolicy if the override is not valid together with the levels above the topic of that name, which need not exist, or
    if these levels are not readable. The levels above are locked until the transaction ends. Does nothing for None.
    """
    if override is None:
        return
    above = get_cluster(tx, _FOR_SHARE)
    validate(resolve(above, get_namespace(tx, topics.namespace_of(topic), _FOR_SHARE), override))


_FOR_SHARE, _FOR_UPDATE = "FOR SHARE", "FOR UPDATE"


def _locked(statement: str) -> dict[str, TextClause]:
    """Return the statement with each lock clause, by the clause; the empty text locks nothing."""
    return {lock: text(f"{statement} {lock}") for lock in ("", _FOR_SHARE, _FOR_UPDATE)}


_CLUSTER = _locked("SELECT policy FROM cleave.cluster_policy")
_NAMESPACE = _locked("SELECT policy, row_version FROM cleave.namespace_policy WHERE namespace = :namespace")
_LEVELS = text("""
    SELECT t.topic_id, CAST(c.policy AS text) AS cluster, CAST(n.policy AS text) AS namespace, CAST(t.policy AS text) AS topic
      FROM cleave.topic t
      LEFT JOIN cleave.namespace_policy n ON n.namespace = t.namespace
     CROSS JOIN cleave.cluster_policy c
     WHERE t.topic_id = ANY (:topic_ids)
""")
_SET_CLUSTER = text("""
    UPDATE cleave.cluster_policy
       SET policy = CAST(:policy AS jsonb), row_version = row_version + 1, actor = :actor,
           updated_at = clock_timestamp()
""")
_SET_NAMESPACE = text("""
    INSERT INTO cleave.namespace_policy AS n (namespace, policy, actor)
    VALUES (:namespace, CAST(:policy AS jsonb), :actor)
    ON CONFLICT (namespace) DO UPDATE
       SET policy = excluded.policy, row_version = n.row_version + 1, actor = excluded.actor,
           updated_at = clock_timestamp()
     WHERE n.row_version = :found
""")
