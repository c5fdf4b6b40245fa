"""Who consumes a topic and what nobody gets, read in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from controller.bootstrap import application
from controller.entrypoints.reach.port import Row
from controller.services import subscription_lag


class DirectConsumers:
    """See `port.Consumers`."""

    def lag(self, topic: str, subscription: str) -> Sequence[Row]:
        """See `port.Consumers`."""
        with application() as cleave:
            found = subscription_lag.lag(cleave.store, cleave.planes, topic, subscription)
        return [asdict(one) for one in found]
