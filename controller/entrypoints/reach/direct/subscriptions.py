"""Subscriptions, read and changed in the database."""

from __future__ import annotations

from collections.abc import Sequence

from controller.entrypoints.reach.columns import SUBSCRIPTION
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading
from controller.store.postgres import inspection
from controller.store.topics import inspected

_OF_TOPIC = (
    f"SELECT {', '.join(SUBSCRIPTION)} FROM inspect.subscriptions WHERE topic_id = :t ORDER BY subscription"  # noqa: S608
)


class DirectSubscriptions:
    """See `port.Subscriptions`."""

    def list(self, topic: str) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        with reading() as tx:
            return inspection.rows(tx, _OF_TOPIC, t=inspected.find_topic(tx, topic).topic_id)
