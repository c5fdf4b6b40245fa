"""What is said of deliveries and dead letters by consumers and workers alike: names that both sides must share."""

from __future__ import annotations

from enum import StrEnum

REDRIVE = "redrive"
"""The subscription of a dead-letter log, for whoever puts its messages back."""


class DeliveryEvent(StrEnum):
    """What happens to a message that is counted."""

    BEGUN = "begun"
    FAILED = "failed"
    ENDED = "ended"
