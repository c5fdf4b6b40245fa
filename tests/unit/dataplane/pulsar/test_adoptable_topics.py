"""A topic that is to be adopted, as its brokers describe it. Real brokers: `tests/integration/dataplane/test_pulsar_adoption.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import cast
from unittest.mock import Mock

import pytest

from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.adoptable_topics import describe_topic
from controller.domain.errors import DataPlaneUnavailable

TOPIC = "persistent://acme/shop/orders"


class Broker:
    """In place of `AdminCalls`: a topic whose partitions show these types of the subscription `billing`."""

    def __init__(self, types: Sequence[str | None]) -> None:
        self._types = types

    def deadline(self) -> Deadline:
        """As `AdminCalls.deadline`."""
        return Deadline(30.0)

    def ask(self, ask: Ask, _deadline: Deadline) -> Answer:
        """As `AdminCalls.ask`."""
        if ask.path.endswith("/partitions"):
            return _answer({"partitions": len(self._types)})
        if ask.path.endswith("/internalStats"):
            return _answer({"state": "LedgerOpened"})
        number = int(ask.path.rpartition("/")[0].rpartition("-partition-")[2])
        return _answer({"subscriptions": {"billing": {"type": self._types[number]}}})

    def demand_all(self, asks: Sequence[Ask], deadline: Deadline) -> list[Answer]:
        """As `AdminCalls.demand_all`."""
        return [self.ask(ask, deadline) for ask in asks]


def _answer(document: object) -> Answer:
    return Answer(200, document, "broker:8080", {})


@pytest.mark.parametrize(
    ("types", "is_queue"),
    [
        *((types, True) for types in permutations(["Shared", "None", None])),
        (["Failover", None], False),
        ([None, "Exclusive"], False),
        ([None, None], False),
    ],
)
def test_a_subscription_is_a_queue_if_any_partition_shows_it(
    types: Sequence[str | None], is_queue: bool
) -> None:
    """A partition without a consumer does not show the type."""
    assert describe_topic(cast(AdminCalls, Broker(types)), TOPIC).subscriptions == {"billing": is_queue}


@pytest.mark.parametrize("document", [[1], "many", {}, {"partitions": None}, {"partitions": "many"}])
def test_a_number_of_partitions_that_cannot_be_read_is_an_error_that_passes(document: object) -> None:
    broker = Mock(AdminCalls, ask=Mock(return_value=_answer(document)))

    with pytest.raises(
        DataPlaneUnavailable, match=rf"partitions of {TOPIC}: .*lacks the requested data .*; try again"
    ):
        describe_topic(broker, TOPIC)


@pytest.mark.parametrize(
    "statistics", [{"publishers": [1]}, {"subscriptions": ["s"]}, {"subscriptions": {"s": None}}]
)
def test_statistics_that_cannot_be_read_are_an_error_that_passes(statistics: object) -> None:
    answers = [_answer(statistics), _answer({"state": "LedgerOpened"})]
    partitions = _answer({"partitions": 0})
    broker = Mock(AdminCalls, ask=Mock(return_value=partitions), demand_all=Mock(return_value=answers))

    with pytest.raises(
        DataPlaneUnavailable, match=rf"check {TOPIC}: .*lacks the requested data .*; try again"
    ):
        describe_topic(broker, TOPIC)
