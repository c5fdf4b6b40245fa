"""Registration of a consumer with a subscription: the states it requires, and the error if one of them is missing.

The database function `cleave.register_consumer` reads and writes in one call. The store and the client both make this
call and pass its result to this module.
"""

from __future__ import annotations

from typing import NamedTuple

from controller.domain.errors import Conflict, SubscriptionNotFound, TopicNotFound, TopicNotLive

_LIVE = "live"


class ConsumerRegistration(NamedTuple):
    """The result of `cleave.register_consumer`, column by column; None where the row does not exist."""

    topic_name: str | None
    topic_state: str | None
    subscription_state: str | None
    is_new: bool | None

    def demand(self, topic_id: int, subscription: str) -> bool:
        """Return True if the database call registered the consumer, False if the consumer was registered already.
        `topic_id` and `subscription` are the arguments of that call and appear in messages only.

        Raises TopicNotFound, TopicNotLive, SubscriptionNotFound, or Conflict while the subscription is being
        deleted.
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
                f"subscription {subscription} of topic {self.topic_name} is being deleted; wait for the deletion, then create it again"
            )
        return bool(self.is_new)
