"""Reads and writes policies at their three levels: cluster, namespace, topic.

The document of a level is replaced as a whole, under its row version, after it was validated together with the levels above. A
change at a higher level can make a lower level invalid; then evaluations refuse all actions on the topic (`invalid-policy`). The
domain defines the parameters.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
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
    """Return the complete policy of the cluster, which is not validated. Parameters that the document does not set have their defaults.
    `lock` is the lock clause with which the row is read; the empty text locks nothing. Raises InvalidPolicy if the stored document has
    an unknown parameter or a value of a wrong type.
    """
    return AutoScalePolicy.from_document(tx.execute(_CLUSTER[lock]).one().policy)


def get_namespace(tx: Connection, namespace: str, lock: str = "") -> PolicyOverride:
    """Return the parameters that the namespace (`tenant/namespace`) overrides; none if its policy was never set or the namespace does not
    exist. `lock` is the lock clause with which the row is read; the empty text locks nothing. Raises InvalidPolicy if the stored
    document has an unknown parameter or a value of a wrong type.
    """
    row = tx.execute(_NAMESPACE[lock], {"namespace": namespace}).one_or_none()
    return PolicyOverride() if row is None else PolicyOverride.from_document(row.policy)


def set_cluster(
    tx: Connection, policy: AutoScalePolicy, *, actor: str, seen_row_version: int | None = None
) -> None:
    """Replace the policy of the cluster. Only parameters that differ from their defaults are stored. The history
    records `actor`. Locks the row. Policies of namespaces and topics are not checked.

    Raises InvalidPolicy if `policy` is not valid, and LostRace if the row has another version than `seen_row_version`
    (None accepts any version). The replaced policy need not be readable.
    """
    validate(policy)
    row = tx.execute(_CLUSTER[_FOR_UPDATE]).one()  # the replaced policy need not be readable
    _demand_version("the cluster", seen_row_version, row.row_version)
    default = AutoScalePolicy().to_document()
    document = {
        parameter: value for parameter, value in policy.to_document().items() if value != default[parameter]
    }
    topics.set_actor(tx, actor)
    tx.execute(_SET_CLUSTER, {"policy": json.dumps(document), "actor": actor})


def set_namespace(
    tx: Connection,
    namespace: str,
    override: PolicyOverride,
    *,
    actor: str,
    seen_row_version: int | None = None,
) -> None:
    """Replace the override of the namespace (`tenant/namespace`). The override must be valid together with the policy
    of the cluster. Topics of the namespace are not checked. The history records `actor`. Locks the rows of the
    namespace and the cluster.

    An empty override keeps the row, so that its versions never start again. `seen_row_version` 0 requires that no
    policy of the namespace was ever set; None accepts any version. The replaced override need not be readable.

    Raises InvalidPolicy if the override is not valid or the stored policy of the cluster is not readable;
    InvalidInput for an invalid name of a namespace; and LostRace if the row has another version than
    `seen_row_version`, or another transaction inserts the row at the same time.
    """
    cluster = get_cluster(tx, _FOR_SHARE)
    row = tx.execute(_NAMESPACE[_FOR_UPDATE], {"namespace": namespace}).one_or_none()
    row_version = 0 if row is None else row.row_version
    _demand_version(f"namespace {namespace}", seen_row_version, row_version)
    validate(resolve(cluster, override))
    parameters = {
        "namespace": demand_namespace(namespace),
        "policy": json.dumps(override.to_document()),
        "actor": actor,
        "found": row_version,
    }
    topics.set_actor(tx, actor)
    if tx.execute(_SET_NAMESPACE, parameters).rowcount != 1:
        raise LostRace(
            f"another transaction has just set the policy of namespace {namespace}; read the policy again",
            what="policy",
        )


def set_topic(
    tx: Connection,
    topic_id: int,
    override: PolicyOverride | None,
    *,
    actor: str | None = None,
    seen_row_version: int | None = None,
) -> None:
    """Replace the override of the topic, which raises the topic's row version. The override must be valid together with
    the policies of the namespace and the cluster. None removes the override, without a check. The policy history
    records `actor`; None records the login.

    Locks the topic row. Unless `override` is None, also locks the policy rows of the namespace and the cluster
    against changes.

    Raises TopicNotFound; TopicNotLive; InvalidPolicy if the override is not valid or a policy of a level above is not
    readable; and LostRace if the topic's row version is not `seen_row_version` (None accepts any version).
    """
    topic = topics.lock_live_topic(tx, topic_id)
    _demand_version(f"topic {topic.name}", seen_row_version, topic.row_version)
    demand_valid(tx, topic.name, override)
    topics.set_actor(tx, actor)
    topics.update_topic(tx, topic, policy=None if override is None else override.to_document())


def stored_document(
    tx: Connection, *, namespace: str | None = None, topic_id: int | None = None
) -> dict[str, Any]:
    """Return the stored document, by parameter, of a topic (which may be deleted), a namespace, or (with neither) the cluster, even if it
    is not a readable policy.

    Empty if no policy is set, also for an unknown namespace. Raises TopicNotFound.
    """
    return stored_version(tx, namespace=namespace, topic_id=topic_id)[0]


def stored_version(
    tx: Connection, *, namespace: str | None = None, topic_id: int | None = None
) -> tuple[dict[str, Any], int]:
    """Return two values about the policy of one level: the stored document, by parameter, as `stored_document`
    returns it, and the row version. `topic_id` selects a topic, `namespace` a namespace, and neither of them the
    cluster.

    The row version of a topic's policy is the row version of the topic. If the namespace or the cluster has no row,
    the document is empty and the version is 0. Raises TopicNotFound.
    """
    if topic_id is not None:
        topic = topics.get_topic(tx, topic_id)
        return dict(topic.policy or {}), topic.row_version
    if namespace is None:
        row = tx.execute(_CLUSTER[""]).one_or_none()
    else:
        row = tx.execute(_NAMESPACE[""], {"namespace": namespace}).one_or_none()
    return ({}, 0) if row is None else (dict(row.policy), row.row_version)


@lru_cache(maxsize=4096)
def read_policy(cluster: str, namespace: str | None = None, topic: str | None = None) -> AutoScalePolicy:
    """Return the policy in force that results from the stored documents of the three levels, which are JSON texts (None: the level sets
    nothing). Does not validate the policy. Never raises. The cache serves the topics of a namespace, most of which have the same documents.

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
    """Return the policy in force of the topic, which may be deleted; an `UnreadablePolicy` if a stored document is not readable. Does not
    validate the policy. Raises TopicNotFound.
    """
    topic = topics.get_topic(tx, topic_id)
    cluster, namespace = (
        stored_document(tx),
        stored_document(tx, namespace=topics.namespace_of(topic.name)),
    )
    return read_policy(json.dumps(cluster), json.dumps(namespace), json.dumps(topic.policy or {}))


def in_force_with(
    tx: Connection, topic_ids: Collection[int], level: PolicyLevel, document: Mapping[str, Any]
) -> dict[int, AutoScalePolicy]:
    """Return, by topic id, the policy that would be in force for each topic if `level` stored `document` for all of
    these topics; an `UnreadablePolicy` if `document`, or a stored document of another level, is not readable. The
    policies are not validated. Nothing is written. Deleted topics are included; topics that do not exist are absent.
    """
    levels = tx.execute(_LEVELS, {"topic_ids": list(topic_ids)}).mappings()
    replacement = {level.value: json.dumps(dict(document))}
    return {
        row["topic_id"]: read_policy(**{name: row[name] for name in PolicyLevel} | replacement)
        for row in levels
    }


def demand_valid(tx: Connection, topic: str, override: PolicyOverride | None) -> None:
    """Raise InvalidPolicy if the override is not valid together with the levels above the topic of that name, which need not exist, or
    if these levels are not readable. The rows of these levels are locked against changes until the transaction ends; a namespace without
    a row is not locked. Does nothing for None.
    """
    if override is None:
        return
    cluster = get_cluster(tx, _FOR_SHARE)
    validate(resolve(cluster, get_namespace(tx, topics.namespace_of(topic), _FOR_SHARE), override))


_FOR_SHARE, _FOR_UPDATE = "FOR SHARE", "FOR UPDATE"


def _locked(statement: str) -> dict[str, TextClause]:
    """Return the statement with each lock clause, by the clause; the empty text locks nothing."""
    return {lock: text(f"{statement} {lock}") for lock in ("", _FOR_SHARE, _FOR_UPDATE)}


_CLUSTER = _locked("SELECT policy, row_version FROM cleave.cluster_policy")
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


def _demand_version(owner: str, seen: int | None, present: int) -> None:
    """Raise LostRace, which names the `owner` of the policy, if its row version is `present` and not `seen`. `seen`
    None accepts any version.
    """
    if seen is not None and seen != present:
        raise LostRace(
            f"the policy of {owner} is at version {present}, not {seen}; read the policy again and decide again",
            what="policy",
        )
