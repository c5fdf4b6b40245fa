"""Brokers of scalable topics whose answers cannot be read: each is an error that passes, and names its topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import DataPlaneUnavailable
from tests.support.scripted_broker import ScriptedBroker, scripted_broker

TOPIC, LOG = "topic://t/n/x", "segment://t/n/x/0000-ffff-0"


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker that says what the test gives it."""
    with scripted_broker() as broker:
        yield broker


@pytest.mark.parametrize("document", [None, "many", {}, {"backlog": 3}, [3]])
def test_a_backlog_that_is_no_number(
    broker: ScriptedBroker, plane: PulsarScalableDataPlane, document: object
) -> None:
    broker.behaves(broker.says(200, document))

    with pytest.raises(DataPlaneUnavailable, match=f"backlog of 's' on {LOG}: .*lacks .*; try again"):
        plane.backlog(LOG, "s")


@pytest.mark.parametrize("subscriptions", [["s"], "s", {"s": None}, {"s": 7}])
def test_subscriptions_that_are_no_objects(
    broker: ScriptedBroker, plane: PulsarScalableDataPlane, subscriptions: object
) -> None:
    broker.behaves(broker.says(200, {"subscriptions": subscriptions}))

    for ask in (lambda: plane.topic_subscriptions(TOPIC), lambda: plane.consumers([LOG])):
        with pytest.raises(DataPlaneUnavailable, match=f"statistics of {TOPIC}: .*lacks .*; try again"):
            ask()


def test_a_number_of_consumers_that_is_no_number(
    broker: ScriptedBroker, plane: PulsarScalableDataPlane
) -> None:
    broker.behaves(broker.says(200, {"subscriptions": {"s": {"consumerCount": "many"}}}))

    with pytest.raises(DataPlaneUnavailable, match=f"statistics of {TOPIC}: .*lacks .*; try again"):
        plane.consumers([LOG])
