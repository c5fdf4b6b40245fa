"""The kinds of consumers that read a subscription."""

from __future__ import annotations

from enum import StrEnum


class SubscriptionConsumers(StrEnum):
    """Consumers that read a subscription: those that register with Cleave, or standard Pulsar consumers behind gates."""

    CLEAVE = "cleave"
    STOCK = "stock"
