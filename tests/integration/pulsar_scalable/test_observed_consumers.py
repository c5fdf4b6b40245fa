"""Consumers that a broker counts for scalable topics, and brokers that answer for some topics only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import DataPlaneUnavailable
from controller.domain.observed_consumers import ObservedConsumer
from tests.support.scripted_broker import Conversation, ScriptedBroker, scripted_broker

A, A_TOO, B, GONE = (
    "segment://t/n/a/0000-7fff-0",
    "segment://t/n/a/8000-ffff-1",
    "segment://t/n/b/0000-ffff-0",
    "segment://t/n/gone/0000-ffff-0",
)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """Counts one consumer of topic `a`, fails for `b`, and has no other topic."""
    with scripted_broker() as broker:
        answers = {
            "a": broker.says(200, {"subscriptions": {"s": {"consumerCount": 1}, "t": {}}}),
            "b": broker.refuses(500, "the ledger is not there"),
        }
        missing = broker.refuses(404, "Scalable topic not found")

        def by_topic(conversation: Conversation) -> None:
            answers.get(conversation.path.split("/")[-2], missing)(conversation)

        broker.behaves(by_topic)
        yield broker


def test_a_topic_that_cannot_be_read_hides_no_other(plane: PulsarScalableDataPlane) -> None:
    assert plane.consumers([B, A, A_TOO, GONE]) == {
        A: [ObservedConsumer("s", "Exclusive", "s 0", "", "")],
        A_TOO: (),
        GONE: [],
    }


def test_if_no_topic_can_be_read_the_error_is_raised(plane: PulsarScalableDataPlane) -> None:
    with pytest.raises(DataPlaneUnavailable, match="statistics of topic://t/n/b: "):
        plane.consumers([B])
