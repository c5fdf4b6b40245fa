"""Subscriptions and who reads them, in the database."""

from __future__ import annotations

from collections.abc import Sequence

from controller.entrypoints.reach.port import SUBSCRIPTION, Row
from controller.entrypoints.reading import reading
from controller.store.postgres import inspection
from controller.store.topics import inspected

_LIST = f"SELECT {', '.join(SUBSCRIPTION)} FROM inspect.subscriptions WHERE topic_id = :topic_id ORDER BY subscription"  # noqa: S608


class DirectSubscriptions:
    """See `port.Subscriptions`."""

    def list(self, topic: str) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        with reading() as tx:
            return inspection.rows(tx, _LIST, topic_id=inspected.find_topic(tx, topic).topic_id)
