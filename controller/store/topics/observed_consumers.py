"""Consumers that brokers list, as last observed. They are stored separately from registered consumers.

Only changes are written, so a pass without changes writes nothing. A trigger raises the topic's input version and notifies the
autoscaler if a count or type changes, as for a registration. For a subscription with registered consumers, decisions use only the
registered consumers (see `store.decisions.evaluation_inputs`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

from controller.domain.observed_consumers import SubscriptionUse

NAMES_KEPT = 100
"""Maximum number of consumer names that are stored for views. The count covers all consumers."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Consumers of one topic: `uses` has them by subscription. `is_whole` is False if the broker of a segment did not answer."""

    topic_id: int
    uses: Mapping[str, SubscriptionUse]
    is_whole: bool = True


_OBSERVED = """
    WITH observed AS (
        SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS g (
               topic_id bigint, name text, subscription_type text, consumers integer,
               consumer_names text[], is_whole boolean)
    ), changed AS (
        SELECT g.* FROM observed g LEFT JOIN cleave.observed_subscription o USING (topic_id, name)
         WHERE o.topic_id IS NULL
            OR NOT g.is_whole AND g.consumers > o.consumers
            OR g.is_whole AND (g.consumers, g.subscription_type, g.consumer_names)
               IS DISTINCT FROM (o.consumers, o.subscription_type, o.consumer_names)
    ), vanished AS (
        SELECT o.topic_id, o.name FROM cleave.observed_subscription o
         WHERE o.topic_id = ANY (:whole)
           AND NOT EXISTS (SELECT FROM observed g WHERE g.topic_id = o.topic_id AND g.name = o.name)
    )
"""
_CHANGED = f"""{_OBSERVED}
    SELECT topic_id FROM (SELECT topic_id FROM changed UNION SELECT topic_id FROM vanished) AS differing
      JOIN cleave.topic t USING (topic_id) WHERE t.state = 'live' ORDER BY 1
"""  # noqa: S608  # our own names only
# The triggers update the same rows in several statements. The rows are locked beforehand, so that two writers cannot deadlock.
_LOCK = """
    SELECT topic_id FROM cleave.evaluation WHERE topic_id = ANY (:changed) ORDER BY topic_id FOR UPDATE
"""
_DELETE = f"""{_OBSERVED}
    DELETE FROM cleave.observed_subscription o USING vanished v WHERE (o.topic_id, o.name) = (v.topic_id, v.name)
"""  # noqa: S608  # our own names only
_WRITE = f"""{_OBSERVED}
    INSERT INTO cleave.observed_subscription (topic_id, name, subscription_type, consumers, consumer_names)
    SELECT n.topic_id, n.name, n.subscription_type, n.consumers, n.consumer_names
      FROM changed n JOIN cleave.topic t USING (topic_id) WHERE t.state = 'live'
        ON CONFLICT (topic_id, name) DO UPDATE
       SET subscription_type = excluded.subscription_type, consumers = excluded.consumers,
           consumer_names = excluded.consumer_names, changed_at = clock_timestamp()
"""  # noqa: S608  # our own names only


def record(tx: Connection, observations: Iterable[Observation]) -> list[int]:
    """Store the observations, at most one per topic, and return the ids of the topics whose stored data change,
    ascending. Observations of topics that are not live are ignored. Locks the `evaluation` rows of the changed
    topics.

    A whole observation replaces the stored subscriptions of its topic, and subscriptions that the observation does
    not contain are deleted. An observation that is not whole adds subscriptions, and replaces a stored subscription
    only if the number of consumers is higher than the stored number, because a broker that did not answer may have
    consumers.
    """
    observation_by_topic = {observation.topic_id: observation for observation in observations}
    changed = list(tx.execute(text(_CHANGED), _parameters(observation_by_topic.values())).scalars())
    if changed:
        tx.execute(text(_LOCK), {"changed": changed})
        parameters = _parameters(
            observation_by_topic[topic_id] for topic_id in changed
        )  # only these topics are locked
        tx.execute(text(_DELETE), parameters)
        tx.execute(text(_WRITE), parameters)
    return changed


def _parameters(observations: Iterable[Observation]) -> dict[str, object]:
    observation_list = list(observations)
    return {
        "given": json.dumps([row for observation in observation_list for row in _rows(observation)]),
        "whole": [observation.topic_id for observation in observation_list if observation.is_whole],
    }


def _rows(observation: Observation) -> Iterable[dict[str, object]]:
    """Yield a row for each subscription, with at most `NAMES_KEPT` names of consumers."""
    subscriptions = {_storable(name): subscription for name, subscription in observation.uses.items()}
    for name, subscription in subscriptions.items():
        yield {
            "topic_id": observation.topic_id,
            "name": name,
            "subscription_type": _storable(subscription.subscription_type),
            "consumers": subscription.consumers,
            "consumer_names": [_storable(consumer_name) for consumer_name in subscription.names[:NAMES_KEPT]],
            "is_whole": observation.is_whole,
        }


def _storable(name: str) -> str:
    """Return the name with each character that PostgreSQL cannot store (a surrogate or NUL) replaced. Clients may use any name."""
    return name.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
