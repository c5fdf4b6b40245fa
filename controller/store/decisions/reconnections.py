"""The reconnection budget: the number of connected clients that decisions may still make reconnect.

Each topic and the cluster have a token bucket, which is refilled at the rates of the policies. `evaluation_inputs`
reads the remaining budget. The autoscaler records the cost of its intents here, in their transaction. Concurrent
batches may together exceed the budget; later batches wait until the budget is positive again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

_SPEND = text("""
    UPDATE cleave.evaluation e
       SET reconnections_at = clock_timestamp(),
           reconnections_left = least(g.per_minute, coalesce(e.reconnections_left + g.per_minute
               * greatest(0, extract(epoch FROM clock_timestamp() - e.reconnections_at)) / 60, g.per_minute)) - g.spent
      FROM unnest(CAST(:topic_id AS bigint[]), CAST(:spent AS float8[]), CAST(:per_minute AS float8[]))
           AS g (topic_id, spent, per_minute)
     WHERE e.topic_id = g.topic_id
""")
_SPEND_OF_CLUSTER = text("""
    UPDATE cleave.cluster_reconnections
       SET reconnections_at = clock_timestamp(),
           reconnections_left = least(:per_minute, coalesce(reconnections_left + CAST(:per_minute AS float8)
               * greatest(0, extract(epoch FROM clock_timestamp() - reconnections_at)) / 60, :per_minute)) - :spent
""")


@dataclass(frozen=True, slots=True)
class Spending:
    """Cost of the actions of one topic, in reconnecting clients, and the rates of its policy per minute."""

    topic_id: int
    reconnections: float
    per_minute: float
    cluster_per_minute: float


def spend(tx: Connection, spendings: Sequence[Spending]) -> None:
    """Subtract the costs of the spendings from the reconnection budgets of their topics, and the sum of the costs
    from the budget of the cluster. A budget may become negative. `spendings` has at most one spending per topic.
    Without a spending nothing changes.

    Each budget is first refilled for the time since its last change, at most up to the rate of one minute. Nothing is
    added if that change is in the future, because the clock was set back. A budget that was never changed is full. The
    budget of the cluster is refilled at the largest `cluster_per_minute` of the spendings. The caller has locked the
    `evaluation` rows of the topics.
    """
    if not spendings:
        return
    tx.execute(
        _SPEND,
        {
            "topic_id": [spending.topic_id for spending in spendings],
            "spent": [spending.reconnections for spending in spendings],
            "per_minute": [spending.per_minute for spending in spendings],
        },
    )
    tx.execute(
        _SPEND_OF_CLUSTER,
        {
            "spent": sum(spending.reconnections for spending in spendings),
            "per_minute": max(spending.cluster_per_minute for spending in spendings),
        },
    )
