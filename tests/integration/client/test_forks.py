"""Clients, sources and stores over a fork: refused in the child or its own there, and untouched in the parent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.devstack.serving import token_for
from controller.services import subscription_admin
from controller.store.topics.subscriptions import SubscriptionKind
from tests.integration.client.conftest import stored
from tests.support.bench import TOPIC, Bench
from tests.support.forked import GROUP, QUEUE, REFUSED, SHARED, STREAM, Place
from tests.support.forking import demand_refused, results_of

Found = Callable[[str], list[object]]


@pytest.fixture
def results_of_kind(bench: Bench, leader: str) -> Found:
    """Return what a process of this kind has found on a topic of one segment, first in its children."""
    bench.topic_with(1, (STREAM,))
    for name, kind in ((QUEUE, SubscriptionKind.QUEUE), (GROUP, SubscriptionKind.CHECKPOINT)):
        bench.finish(
            subscription_admin.create_subscription(bench.store, TOPIC, name, bench.request(), kind=kind)
        )
    place = Place(leader, token_for(), bench.url, TOPIC)
    return lambda kind: results_of(kind, place)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_child_is_refused_each_call_and_the_parent_goes_on(kind: str, results_of_kind: Found) -> None:
    in_child, _ = results_of_kind(kind)

    demand_refused(in_child)


@pytest.mark.parametrize(
    ("kind", "in_child", "in_parent"),
    [
        ("Servers", TOPIC, TOPIC),
        ("HttpSource", TOPIC, TOPIC),
        ("PostgresSource", TOPIC, TOPIC),
        ("DataPlane", [STREAM, GROUP, QUEUE], [STREAM, GROUP, QUEUE]),
        ("Store", True, True),
        ("Listener", ["resync"], []),
    ],
)
def test_a_child_has_connections_of_its_own_and_the_parent_keeps_its_own(
    kind: str, in_child: object, in_parent: object, results_of_kind: Found
) -> None:
    assert results_of_kind(kind) == [in_child, in_parent]
    assert kind in SHARED


def test_a_transaction_of_before_the_fork_is_the_parents_alone(results_of_kind: Found) -> None:
    in_child, in_parent = results_of_kind("Transaction")

    assert "was opened before a fork" in str(in_child)
    assert in_parent == 1


def test_children_store_nothing_by_their_parents_producer_and_are_told_so(
    results_of_kind: Found, bench: Bench
) -> None:
    children = results_of_kind("made before")

    assert len(children) == 2
    assert all("Producer of" in str(told) and "make one after the fork" in str(told) for told in children)
    assert len(stored(bench, 0)) == 1  # the parent's own


def test_children_store_all_by_producers_of_their_own(results_of_kind: Found, bench: Bench) -> None:
    assert results_of_kind("made after") == ["stored", "stored"]
    assert len(stored(bench, 0)) == 200
