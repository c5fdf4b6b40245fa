"""What a broker reports of one bundle, or of one topic: rates and counts. Every rule on bundles starts from them.

Averages over time are in `averages`. Who owns a bundle is in `cluster`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BundleStats:
    """Rates of messages and bytes per second, and counts, at one instant. Nothing here is negative."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_in: float = 0.0
    byte_rate_out: float = 0.0
    topic_count: int = 0
    producer_count: int = 0
    consumer_count: int = 0
    cache_size_bytes: int = 0

    @property
    def msg_rate(self) -> float:
        """Messages per second, in and out together. Pulsar calls it the rate of a bundle."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def byte_rate(self) -> float:
        """Bytes per second, in and out together. Pulsar calls it throughput."""
        return self.byte_rate_in + self.byte_rate_out

    @property
    def session_count(self) -> int:
        """Producers and consumers together."""
        return self.producer_count + self.consumer_count
