"""Sets and removes the policy document of a level, which is read, changed and written in one transaction. A
preview only reports which topics would be decided differently at once; it writes nothing and takes no locks.

A level is `cluster`, a namespace (`tenant/namespace`), or a topic's full name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tenacity
from sqlalchemy import Connection, text

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.domain.decision import Decision
from controller.domain.errors import InvalidPolicy, LostRace
from controller.domain.evaluator import decide
from controller.domain.policy import AutoScalePolicy, PolicyLevel, PolicyOverride, resolve, validate
from controller.store.decisions import evaluation_inputs
from controller.store.postgres.engine import Store
from controller.store.postgres.snapshots import snapshot
from controller.store.topics import policies, topics

log = telemetry.get_logger(__name__)

Document = dict[str, Any]
Merge = Callable[[Document], Mapping[str, Any]]
"""Returns the new document of a level, given its present document."""
MOST_TOPICS = 500
"""Maximum number of topics that a preview evaluates. If a cluster or namespace has more, the preview takes
topics that are spread evenly over the ids.
"""
_ATTEMPTS = 5
"""Maximum number of attempts to change a level that other transactions change at the same time."""
_TOPICS = text("""
    WITH numbered AS (
        SELECT topic_id, name, row_number() OVER (ORDER BY topic_id) - 1 AS number, count(*) OVER () AS topics
          FROM cleave.topic WHERE state = 'live' AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace))
    SELECT topic_id, name, topics FROM numbered
     WHERE number % greatest(1, (topics + :limit - 1) / :limit) = 0 ORDER BY topic_id
""")


@dataclass(frozen=True, slots=True)
class Changed:
    """The documents stored at a level before and after a change. The document of the cluster has every
    parameter.
    """

    before: Document
    after: Document


@dataclass(frozen=True, slots=True)
class Consequences:
    """Result of a preview: the change of the level, the number of evaluated topics, and the number of live topics of the level.
    `changed_topics` has the topics whose decisions would differ, with their decisions under the policy in force and under the changed
    policy.
    """

    changed: Changed
    changed_topics: Mapping[str, tuple[Sequence[Decision], Sequence[Decision]]]
    evaluated: int
    topics: int


def kind_of(level: str) -> PolicyLevel:
    """Return the kind of the level: `cluster` is the cluster, a name with `://` a topic, and any other name a
    namespace. The name is not checked.
    """
    if level == PolicyLevel.CLUSTER:
        return PolicyLevel.CLUSTER
    return PolicyLevel.TOPIC if "://" in level else PolicyLevel.NAMESPACE


def change(store: Store, level: str, merge: Merge, *, actor: str) -> Changed:
    """Replace the document of the level by the result of `merge`, which is called with the present document, and
    return both documents. An empty result removes all parameters of the level; the cluster then has the defaults. A
    commit that changes a parameter is logged, except in a dry run. The history records `actor`.

    If another transaction changes the level in the meantime, `merge` is called again with the document of that
    transaction, at most `_ATTEMPTS` times in all; then LostRace is raised. Raises TopicNotFound and TopicNotLive for
    a topic's level; InvalidInput for an invalid name of a namespace; InvalidPolicy if the new document has an unknown
    parameter or a value of a wrong type, or is not valid together with the levels above; the errors of `merge`; and
    the errors of `Store.transaction`.
    """
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_stale),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    difference = attempts(_attempt, store, level, merge, actor)
    if difference.before != difference.after and not store.rolls_back:
        parameters = sorted(
            parameter
            for parameter in difference.before.keys() | difference.after.keys()
            if difference.before.get(parameter) != difference.after.get(parameter)
        )
        log.info("policy set", level=level, actor=actor, parameters=parameters)
    return difference


def _is_stale(error: BaseException) -> bool:
    """Return True if another transaction changed the policy after it was read."""
    return isinstance(error, LostRace) and error.what == "policy"


def _attempt(store: Store, level: str, merge: Merge, actor: str) -> Changed:
    """Replace the document of the level, as `change` does, in one transaction. Logs nothing. Raises the errors of `change`; LostRace if
    another transaction changed the level in the meantime.
    """
    with store.transaction() as tx:
        document_before, row_version = _stored(tx, level)
        _write(tx, level, dict(merge(dict(document_before))), actor, row_version)
        return Changed(document_before, stored(tx, level))


def stored(tx: Connection, level: str) -> Document:
    """Return the document stored at a level, for the cluster with every parameter. Empty for a namespace or topic
    without a policy, also for an unknown namespace. A document that cannot be read as a policy is returned as
    stored, so that it can be inspected and corrected. Raises TopicNotFound.
    """
    return _stored(tx, level)[0]


def _stored(tx: Connection, level: str) -> tuple[Document, int]:
    """Return the document of `stored`, and the row version that a change of the level must name. For a topic this is
    the version of the topic's row, even if the topic has no policy; for a namespace or the cluster without a row it
    is 0. Raises TopicNotFound.
    """
    kind = kind_of(level)
    topic_id = topics.find_topic(tx, level).topic_id if kind is PolicyLevel.TOPIC else None
    namespace = level if kind is PolicyLevel.NAMESPACE else None
    document, row_version = policies.stored_version(tx, topic_id=topic_id, namespace=namespace)
    policy = AutoScalePolicy if kind is PolicyLevel.CLUSTER else PolicyOverride
    try:
        return policy.from_document(document).to_document(), row_version
    except InvalidPolicy:  # The document is returned as stored, so that it can be inspected and corrected.
        return document, row_version


def _write(tx: Connection, level: str, document: Document, actor: str, row_version: int) -> None:
    """Store the document at the level, in the caller's transaction; the history records `actor`. An empty document
    removes the override of a topic; a namespace keeps a row with an empty override, and the cluster gets the
    defaults. Raises InvalidPolicy, TopicNotFound, TopicNotLive, InvalidInput for an invalid name of a namespace, and
    LostRace (`what` is `policy`) if the level no longer has the row version `row_version`.
    """
    kind = kind_of(level)
    if kind is PolicyLevel.CLUSTER:
        policies.set_cluster(
            tx, AutoScalePolicy.from_document(document), actor=actor, seen_row_version=row_version
        )
        return
    override = PolicyOverride.from_document(document)
    if kind is PolicyLevel.TOPIC:
        topic_id = topics.find_topic(tx, level).topic_id
        policies.set_topic(
            tx, topic_id, override if document else None, actor=actor, seen_row_version=row_version
        )
    else:
        policies.set_namespace(tx, level, override, actor=actor, seen_row_version=row_version)


def preview(
    store: Store,
    planes: Mapping[str, DataPlane],
    level: str,
    merge: Merge,
) -> Consequences:
    """Evaluate up to `MOST_TOPICS` live topics of the level under the policy in force and under the policy that would
    be in force after the change. `merge` is called with the level's present document and returns the level's new
    document. Return the topics whose decisions differ, and both documents. All evaluations of a topic use the same
    inputs at the same instant, so that differences come from the policy alone.

    Topics whose data plane is not in `planes` are not evaluated, and are absent from `evaluated`. The preview writes
    and locks nothing. Raises TopicNotFound and TopicNotLive for a topic's level, InvalidPolicy as `change` does, the
    errors of `merge`, and the errors of `Store.transaction`. Unlike `change`, the preview does not check the name of
    a namespace: an unknown namespace has no topics.
    """
    capabilities = {name: plane.capabilities for name, plane in planes.items()}
    with snapshot(store) as tx:
        document_before = stored(tx, level)
        document_after = _demand_valid(tx, level, dict(merge(dict(document_before))))
        names, topic_count = _topics(tx, level)
        policies_in_force = policies.in_force_with(tx, names, kind_of(level), document_after)
        inputs_now = evaluation_inputs.load_evaluation_inputs(tx, names, capabilities)
        inputs_then = evaluation_inputs.load_evaluation_inputs(
            tx, names, capabilities, instead=policies_in_force
        )
    changed_topics = {}
    for topic_id in sorted(inputs_now.keys() & inputs_then.keys()):
        present_decisions = decide(inputs_now[topic_id]).decisions
        changed_decisions = decide(replace(inputs_then[topic_id], now=inputs_now[topic_id].now)).decisions
        if present_decisions != changed_decisions:
            changed_topics[names[topic_id]] = present_decisions, changed_decisions
    return Consequences(
        Changed(document_before, document_after), changed_topics, len(inputs_now), topic_count
    )


def _demand_valid(tx: Connection, level: str, document: Document) -> Document:
    """Return the document that `stored` would return if `document` were stored at the level; for the cluster with
    every parameter. Writes nothing. Raises InvalidPolicy in the same cases as `change`, and TopicNotFound and
    TopicNotLive for a topic's level. The name of a namespace is not checked. An empty document of a topic, which
    removes the override, is returned without a check of the levels above.
    """
    kind = kind_of(level)
    if kind is PolicyLevel.CLUSTER:
        policy = AutoScalePolicy.from_document(document)
        validate(policy)
        return policy.to_document()
    override = PolicyOverride.from_document(document)
    if kind is PolicyLevel.TOPIC:
        topics.demand_live(level, topics.find_topic(tx, level).state)
        if not document:
            return document
    cluster = policies.get_cluster(tx)
    if kind is PolicyLevel.TOPIC:
        namespace = policies.get_namespace(tx, topics.namespace_of(level))
        validate(resolve(cluster, namespace, override))
    else:
        validate(resolve(cluster, override))
    return override.to_document()


def _topics(tx: Connection, level: str) -> tuple[dict[int, str], int]:
    """Return two values: the names, by id, of the topics that a preview evaluates, and the number of live topics of
    the level. If the level has more than `MOST_TOPICS` live topics, the names are a selection that is spread evenly
    over the ids. The level of a topic has one topic, live or not. A namespace or cluster without live topics gives no
    names and 0. Raises TopicNotFound.
    """
    kind = kind_of(level)
    if kind is PolicyLevel.TOPIC:
        return {topics.find_topic(tx, level).topic_id: level}, 1
    namespace = level if kind is PolicyLevel.NAMESPACE else None
    rows = tx.execute(_TOPICS, {"namespace": namespace, "limit": MOST_TOPICS}).all()
    return {row.topic_id: row.name for row in rows}, rows[0].topics if rows else 0
