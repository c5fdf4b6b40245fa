"""The sentence that tells how far behind a subscription is."""

from __future__ import annotations

from controller.questions.consumers import BucketLagDocument, LagAnswer
from controller.store.topics.subscriptions import SubscriptionKind


def _lag(kind: SubscriptionKind) -> LagAnswer:
    bucket = BucketLagDocument(
        segment_id=0,
        hash_range="0000-ffff",
        state="ACTIVE",
        bucket=None,
        owners=[],
        messages=5500,
        error=None,
    )
    return LagAnswer(topic="topic://acme/shop/orders", subscription="indexers", kind=kind, buckets=[bucket])


def test_the_messages_of_a_stream_are_to_be_read() -> None:
    assert "indexers has 5500 messages to read in 1 segment" in _lag(SubscriptionKind.STREAM).sentence()


def test_the_messages_of_a_checkpoint_subscription_are_kept_whoever_has_read_them() -> None:
    sentence = _lag(SubscriptionKind.CHECKPOINT).sentence()

    assert "indexers keeps 5500 messages in 1 segment" in sentence
    assert "this number does not say how far they have read" in sentence
