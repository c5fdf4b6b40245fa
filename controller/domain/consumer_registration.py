"""Registering a consumer with a subscription: what must be live for it, and what is said when it is not.

The database looks and writes in one call, `cleave.register_consumer`. The store and the client both make that call and
hand its answer to this module.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.domain.errors import Conflict, SubscriptionNotFound, TopicNotFound, TopicNotLive

_LIVE = "live"


class ConsumerRegistration(NamedTuple):
    """The answer of `cleave.register_consumer`, column by column; None where there is no such row."""

    topic_name: str | None
    topic_state: str | None
    subscription_state: str | None
    is_new: bool | None

    def demand(self, topic_id: int, subscription: str) -> bool:
        """True when the consumer was registered anew, False when it was registered already.

        Raises TopicNotFound, TopicNotLive, SubscriptionNotFound, or Conflict while the subscription is deleted.
        """
        if self.topic_state is None:
            raise TopicNotFound(f"topic {topic_id} does not exist; look its id up by name")
        if self.topic_state != _LIVE:
            raise TopicNotLive(
                f"topic {self.topic_name} is {self.topic_state}; consumers join a live topic only"
            )
        if self.subscription_state is None:
            raise SubscriptionNotFound(
                f"topic {self.topic_name} has no subscription {subscription}; create it first, or check the name"
            )
        if self.subscription_state != _LIVE:
            raise Conflict(
                f"subscription {subscription} of topic {self.topic_name} is being deleted; create it anew afterwards"
            )
        return bool(self.is_new)
