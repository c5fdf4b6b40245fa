"""What a broker reports of one bundle (or of one topic): rates and counts, the input of every bundle rule.

Averages over time are in `figures`; who owns what is in the cycle's inputs.
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
        """Messages per second, in and out together: what Pulsar calls the rate of a bundle."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def byte_rate(self) -> float:
        """Bytes per second, in and out together: what Pulsar calls throughput."""
        return self.byte_rate_in + self.byte_rate_out

    @property
    def session_count(self) -> int:
        """Producers and consumers together."""
        return self.producer_count + self.consumer_count
