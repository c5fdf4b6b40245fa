"""The rule after how many deliveries a message becomes a dead letter.

With a dead-letter log, a message that was delivered `max_deliveries` times without success is stored there,
and its key continues. Without a dead-letter log, a failing message is retried forever, and a message during
which `max_deliveries` processes died is not begun again: its key is held.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.client.keyed_schedule import WorkItem


class DeliveryLimit(NamedTuple):
    """The limit of one consumer. `has_dead_letters`: True if the consumer has a dead-letter log."""

    max_deliveries: int
    has_dead_letters: bool

    def is_reached(self, item: WorkItem) -> bool:
        """Return True if the message must not be begun again, because its deliveries, or without a
        dead-letter log its deaths, have reached the maximum.
        """
        count = item.deliveries if self.has_dead_letters else item.deaths
        return count >= self.max_deliveries
