"""Clients on a real broker over a fork: refused in the child, and the parent's connections stay as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.client.servers import Servers
from controller.devstack.serving import token_for
from tests.integration.dataplane.pulsar_house import PulsarSetup
from tests.support.forked import GROUP, QUEUE, REFUSED, STREAM, Place
from tests.support.forking import demand_refused, found_by

Found = Callable[[str], list[object]]


@pytest.fixture
def found(house: PulsarSetup, servers: Servers, database: str) -> Found:
    """Return what a process of this kind has found on a topic of one segment, first in its children."""
    house.create(1, STREAM)
    for name, kind in ((QUEUE, "queue"), (GROUP, "checkpoint")):
        house.cleave.ok("subscriptions", "create", house.topic, name, "--kind", kind)
    place = Place(
        servers._urls[0],
        token_for(),
        database,
        house.topic,
        "pulsar",
        house.access.admin_url,
        str(house.access.service_url),
    )
    return lambda kind: found_by(kind, place)


def stored(house: PulsarSetup) -> int:
    """Return the number of messages in the topic's log."""
    path = f"persistent/{house.log_of(0).removeprefix('persistent://')}/stats"
    return int(house.admin("GET", path).json()["msgInCounter"])


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind != "TopicWatch"])
def test_a_child_is_refused_each_call_and_the_parent_stays_connected(kind: str, found: Found) -> None:
    in_child, _ = found(kind)

    demand_refused(in_child)


def test_children_store_nothing_by_their_parents_producer_and_are_told_so(
    found: Found, house: PulsarSetup
) -> None:
    children = found("made before")

    assert len(children) == 2
    assert all("Producer of" in str(told) and "make one after the fork" in str(told) for told in children)
    assert stored(house) == 1  # the parent's own


def test_children_store_all_by_producers_of_their_own(found: Found, house: PulsarSetup) -> None:
    assert found("made after") == ["stored", "stored"]
    assert stored(house) == 200
