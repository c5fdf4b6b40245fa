"""The budget of reconnections: how many connected clients decisions may still make to reconnect.

A token bucket for each topic and one for the cluster, refilled by the policies' rates. `situations` reads what is left;
the autoscaler notes here, in the transaction of its intents, what they will cost. Batches that decide at the same
moment may together spend more than there is. The next ones wait until that is paid back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

_SPEND = text("""
    UPDATE cleave.evaluation e
       SET reconnections_at = clock_timestamp(),
           reconnections_left = least(g.per_minute, coalesce(e.reconnections_left + g.per_minute
               * extract(epoch FROM clock_timestamp() - e.reconnections_at) / 60, g.per_minute)) - g.spent
      FROM unnest(CAST(:topic_id AS bigint[]), CAST(:spent AS float8[]), CAST(:per_minute AS float8[]))
           AS g (topic_id, spent, per_minute)
     WHERE e.topic_id = g.topic_id
""")
_SPEND_OF_CLUSTER = text("""
    UPDATE cleave.cluster_reconnections
       SET reconnections_at = clock_timestamp(),
           reconnections_left = least(:per_minute, coalesce(reconnections_left + CAST(:per_minute AS float8)
               * extract(epoch FROM clock_timestamp() - reconnections_at) / 60, :per_minute)) - :spent
""")


@dataclass(frozen=True, slots=True)
class Spending:
    """What one topic's acts cost: clients that reconnect; and the rates of its policy, a minute."""

    topic_id: int
    reconnections: float
    per_minute: float
    cluster_per_minute: float


def spend(tx: Connection, spendings: Sequence[Spending]) -> None:
    """Notes what was spent; the rows of `evaluation` are the caller's already."""
    if not spendings:
        return
    tx.execute(
        _SPEND,
        {
            "topic_id": [one.topic_id for one in spendings],
            "spent": [one.reconnections for one in spendings],
            "per_minute": [one.per_minute for one in spendings],
        },
    )
    tx.execute(
        _SPEND_OF_CLUSTER,
        {
            "spent": sum(one.reconnections for one in spendings),
            "per_minute": max(one.cluster_per_minute for one in spendings),
        },
    )
