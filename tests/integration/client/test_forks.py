"""Clients, sources and stores over a fork: refused in the child or its own there, and untouched in the parent."""

from __future__ import annotations

import pytest

from controller.devstack.serving import token_for
from controller.store.topics.subscriptions import SubscriptionKind
from tests.integration.client.conftest import stored
from tests.support.bench import TOPIC, Bench
from tests.support.forked import GROUP, QUEUE, REFUSED, SHARED, STREAM, Place
from tests.support.forking import demand_refused, results_of

IN_CHILD_AND_PARENT: dict[str, list[object]] = {
    "Servers": [TOPIC, TOPIC],
    "HttpSource": [TOPIC, TOPIC],
    "PostgresSource": [TOPIC, TOPIC],
    "DataPlane": [[STREAM, GROUP, QUEUE], [STREAM, GROUP, QUEUE]],
    "Store": [True, True],
    "Listener": [["resync"], []],
}


@pytest.fixture
def place(bench: Bench, leader: str) -> Place:
    """A topic of one segment with a subscription of each kind."""
    bench.topic_with(1, (STREAM,))
    for name, kind in ((QUEUE, SubscriptionKind.QUEUE), (GROUP, SubscriptionKind.CHECKPOINT)):
        bench.subscribe(name, kind=kind)
    return Place(leader, token_for(), bench.url, TOPIC)


def test_a_child_is_refused_each_call_and_the_parent_goes_on(place: Place) -> None:
    for kind, (in_child, _) in results_of(place, *REFUSED).items():
        demand_refused(kind, in_child)


def test_a_child_has_connections_of_its_own_and_the_parent_keeps_its_own(place: Place) -> None:
    assert results_of(place, *IN_CHILD_AND_PARENT) == IN_CHILD_AND_PARENT
    assert IN_CHILD_AND_PARENT.keys() < SHARED.keys()


def test_a_transaction_of_before_the_fork_is_the_parents_alone(place: Place) -> None:
    in_child, in_parent = results_of(place, "Transaction")["Transaction"]

    assert "was opened before a fork" in str(in_child)
    assert in_parent == 1


def test_children_store_nothing_by_their_parents_producer_and_are_told_so(place: Place, bench: Bench) -> None:
    children = results_of(place, "made before")["made before"]

    assert len(children) == 2
    assert all("Producer of" in str(told) and "make one after the fork" in str(told) for told in children)
    assert len(stored(bench, 0)) == 1  # the parent's own


def test_children_store_all_by_producers_of_their_own(place: Place, bench: Bench) -> None:
    assert results_of(place, "made after")["made after"] == ["stored", "stored"]
    assert len(stored(bench, 0)) == 200
