"""The grace period: when the buckets of a disconnected consumer are given to other consumers.

A disconnected consumer keeps its session and its buckets until the end of the grace period, which `sessions`
stores in the session (`expires_at`). Then the leader ends the session, and the settlement that removes the consumer's
row assigns its buckets to others. The period of a connected consumer does not run: its end is infinite. A session that
another leader or process began has the whole period from the moment at which this leader adds it
(`SubscriptionSessions.restore`), because this leader does not know since when the consumer has been disconnected. Times
are monotonic seconds.
"""

from __future__ import annotations

from controller.services.consumer_sessions.timing import ConsumerTiming


def end_of_grace(timing: ConsumerTiming, now: float) -> float:
    """Return the end of the grace period of a consumer that is disconnected at `now`."""
    return now + timing.grace_seconds


def end_of_grace_after_silence(timing: ConsumerTiming, now: float) -> float:
    """Return the end of the grace period of a consumer that is disconnected at `now` because it was silent for
    `silent_seconds`: its period is shorter by that time.
    """
    return end_of_grace(timing, now) - timing.silent_seconds


def has_ended(expires_at: float, now: float) -> bool:
    """Return True if the grace period that ends at `expires_at` has ended, so that others get the buckets."""
    return expires_at <= now
