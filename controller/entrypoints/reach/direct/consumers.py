"""Who consumes a topic and what nobody gets, read in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from controller.bootstrap import application
from controller.entrypoints.reach.columns import ASSIGNMENT, BUCKET
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading
from controller.services import subscription_lag
from controller.store.postgres import inspection
from controller.store.topics import inspected

_ASSIGNMENTS = f"""
    SELECT {", ".join(ASSIGNMENT)} FROM (SELECT *, consumers AS consumer_names FROM inspect.assignments WHERE topic_id = :t) AS a
     ORDER BY subscription, hash_range, segment_id
"""  # noqa: S608 - constants only, as below
_BUCKETS = f"""
    SELECT {", ".join(BUCKET)} FROM inspect.buckets WHERE topic_id = :t AND (CAST(:s AS text) IS NULL OR subscription = :s)
     ORDER BY subscription, hash_range, segment_id, bucket
"""  # noqa: S608


class DirectConsumers:
    """See `port.Consumers`."""

    def assignments(self, topic: str) -> Sequence[Row]:
        """See `port.Consumers`."""
        with reading() as tx:
            return inspection.rows(tx, _ASSIGNMENTS, t=inspected.find_topic(tx, topic).topic_id)

    def buckets(self, topic: str, subscription: str | None) -> Sequence[Row]:
        """See `port.Consumers`."""
        with reading() as tx:
            return inspection.rows(tx, _BUCKETS, t=inspected.find_topic(tx, topic).topic_id, s=subscription)

    def lag(self, topic: str, subscription: str) -> Sequence[Row]:
        """See `port.Consumers`."""
        with application() as cleave:
            found = subscription_lag.lag(cleave.store, cleave.planes, topic, subscription)
        return [asdict(one) for one in found]
