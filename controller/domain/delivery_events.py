"""Names that consumers and workers share for deliveries and dead letters."""

from __future__ import annotations

from enum import StrEnum

REDRIVE = "redrive"
"""The subscription of a dead-letter log for the program that puts its messages back."""


class DeliveryEvent(StrEnum):
    """Event of a message's delivery that is counted."""

    BEGUN = "begun"
    FAILED = "failed"
    ENDED = "ended"
