"""Clients on a real broker over a fork: refused in the child, and the parent's connections stay as they were."""

from __future__ import annotations

import pytest

from controller.client.servers import Servers
from controller.devstack.serving import token_for
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.forked import GROUP, QUEUE, REFUSED, STREAM, Place
from tests.support.forking import demand_refused, results_of


@pytest.fixture
def place(setup: PulsarSetup, servers: Servers, database: str) -> Place:
    """A topic of one segment with a subscription of each kind."""
    setup.create(1, STREAM)
    for name, kind in ((QUEUE, "queue"), (GROUP, "checkpoint")):
        setup.cleave.ok("subscriptions", "create", setup.topic, name, "--kind", kind)
    return Place(
        servers._urls[0],
        token_for(),
        database,
        setup.topic,
        "pulsar",
        setup.access.admin_url,
        str(setup.access.service_url),
    )


def stored(setup: PulsarSetup) -> int:
    """Return the number of messages in the topic's log."""
    path = f"persistent/{setup.log_of(0).removeprefix('persistent://')}/stats"
    return int(setup.admin("GET", path).json()["msgInCounter"])


def test_a_child_is_refused_each_call_and_the_parent_stays_connected(place: Place) -> None:
    kinds = [kind for kind in REFUSED if kind != "TopicWatch"]

    for kind, (in_child, _) in results_of(place, *kinds).items():
        demand_refused(kind, in_child)


def test_children_store_nothing_by_their_parents_producer_and_are_told_so(
    place: Place, setup: PulsarSetup
) -> None:
    children = results_of(place, "made before")["made before"]

    assert len(children) == 2
    assert all("Producer of" in str(told) and "make one after the fork" in str(told) for told in children)
    assert stored(setup) == 1  # the parent's own


def test_children_store_all_by_producers_of_their_own(place: Place, setup: PulsarSetup) -> None:
    assert results_of(place, "made after")["made after"] == ["stored", "stored"]
    assert stored(setup) == 200
