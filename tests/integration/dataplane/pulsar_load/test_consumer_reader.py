"""Consumers from statistics of topics over real HTTP: owners are followed and remembered, silence is told from none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from controller.dataplane.pulsar.admin import bearer_session
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar_load import brokers as broker_list
from controller.dataplane.pulsar_load import consumers
from controller.dataplane.pulsar_load.consumers import ConsumerReader
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable, InvalidInput
from controller.domain.observed_consumers import ObservedConsumer
from tests.support import staged_brokers
from tests.support.staged_brokers import StagedBroker

A, B = "persistent://t/n/orders-segment-0000-7fff-1", "persistent://t/n/a b/c"
SHORT_SECONDS = 1.5


def stats(**subscriptions: Any) -> dict[str, Any]:
    """Statistics with these subscriptions."""
    return {"subscriptions": subscriptions}


def subscription(kind: str, *names: str, durable: bool = True) -> dict[str, Any]:
    """One, with consumers of these names."""
    consumers = [{"consumerName": name, "address": "/10.0.0.1:5000"} for name in names]
    return {"type": kind, "durable": durable, "isDurable": durable, "consumers": consumers}


@pytest.fixture
def brokers() -> Iterator[list[StagedBroker]]:
    """Two of one cluster; each sends for the other's topics to the other."""
    with ExitStack() as stack:
        first, second = [stack.enter_context(StagedBroker()) for _ in range(2)]
        first.cluster[:] = second.cluster[:] = [first.name, second.name]
        first.stats |= {A: stats(s=subscription("Failover", "pod-1", "pod-2")), B: second.url}
        second.stats |= {A: first.url, B: stats(q=subscription("Shared", "w"))}
        yield [first, second]


@pytest.fixture
def load(brokers: list[StagedBroker]) -> Iterator[ConsumerReader]:
    """Knows the first broker."""
    load = reading(brokers)
    yield load
    load.close()


def reading(
    brokers: list[StagedBroker], seconds: float = 5.0, session: requests.Session | None = None
) -> ConsumerReader:
    """With this time for a call; the first broker is asked for the list."""
    session = session or requests.Session()
    listed = broker_list.BrokerList(session, [brokers[0].url])
    return ConsumerReader(session, listed, deadline_seconds=seconds)


def statistics_requests(broker: StagedBroker) -> int:
    """Requests for statistics so far."""
    return sum("/stats" in path for path, _ in broker.requests)


def test_consumers_are_found_at_the_owner_who_is_remembered(
    brokers: list[StagedBroker], load: ConsumerReader
) -> None:
    expected = {
        A: [
            ObservedConsumer("s", "Failover", name, "/10.0.0.1:5000", brokers[0].url)
            for name in ("pod-1", "pod-2")
        ],
        B: [ObservedConsumer("q", "Shared", "w", "/10.0.0.1:5000", brokers[1].url)],
    }
    assert load.consumers([A, B]) == expected

    before = statistics_requests(brokers[0]) + statistics_requests(brokers[1])
    assert load.consumers([A, B]) == expected
    assert statistics_requests(brokers[0]) + statistics_requests(brokers[1]) == before + 2

    brokers[0].stats[A], brokers[1].stats[A] = brokers[1].url, brokers[0].stats[A]  # it moves
    assert [one.broker for one in load.consumers([A])[A]] == [brokers[1].url] * 2


def test_the_owner_of_a_log_that_is_no_longer_asked_for_is_forgotten(
    load: ConsumerReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.consumers([A, B])
    monkeypatch.setattr(consumers, "FORGET_SECONDS", 0.0)

    load.consumers([A])
    assert {*load._owners, *load._earlier_owners} == {A, B}

    load.consumers([A])
    assert {*load._owners, *load._earlier_owners} == {A}


def test_a_missing_topic_has_no_consumers(load: ConsumerReader) -> None:
    assert load.consumers(["persistent://t/n/none"]) == {"persistent://t/n/none": []}


def test_the_brokers_own_subscriptions_and_those_of_readers_are_left_out(
    brokers: list[StagedBroker], load: ConsumerReader
) -> None:
    brokers[0].stats[A] = stats(
        __compaction=subscription("Exclusive", "x"),
        reader=subscription("Exclusive", "y", durable=False),
        idle={},
    )

    assert load.consumers([A]) == {A: []}


@pytest.mark.parametrize(
    "manner",
    [
        staged_brokers.silent,
        staged_brokers.dripping,
        staged_brokers.dying,
        staged_brokers.failing,
        staged_brokers.talking_of_something_else,
    ],
)
def test_a_topic_whose_broker_misbehaves_is_absent_and_not_empty(
    brokers: list[StagedBroker], manner: staged_brokers.Manner
) -> None:
    load = reading(brokers, SHORT_SECONDS)
    brokers[1].manner = manner

    assert list(load.consumers([A, B])) == [A]
    with pytest.raises(DataPlaneUnavailable):
        load.consumers([B])
    load.close()


@pytest.mark.parametrize(
    "incomplete",
    [{"subscriptions": None}, {"subscriptions": []}, stats(s=None), stats(s={"consumers": None})],
    ids=["no subscriptions", "a list", "no subscription", "no consumers"],
)
def test_a_topic_with_incomplete_statistics_is_absent_and_not_empty(
    brokers: list[StagedBroker], load: ConsumerReader, incomplete: dict[str, Any]
) -> None:
    brokers[1].stats[B] = incomplete

    assert list(load.consumers([A, B])) == [A]
    with pytest.raises(DataPlaneUnavailable, match=f"{brokers[1].url} sent incomplete statistics of {B}"):
        load.consumers([B])


def test_a_silent_broker_does_not_hold_up_every_call(brokers: list[StagedBroker]) -> None:
    load = reading(brokers, SHORT_SECONDS)
    load.consumers([A, B])
    brokers[1].manner = staged_brokers.silent
    load.consumers([A, B])
    before = statistics_requests(brokers[1])

    with pytest.raises(DataPlaneTimeout, match="did not respond recently"):
        load.consumers([B])
    assert statistics_requests(brokers[1]) == before
    load.close()


def test_logs_of_a_silent_broker_do_not_make_another_broker_quiet(brokers: list[StagedBroker]) -> None:
    """The silent broker's logs occupy every thread, so that the other broker is not called before the deadline."""
    load = reading(brokers, SHORT_SECONDS)
    many = [f"{B}{number}" for number in range(consumers.AT_ONCE)]
    brokers[0].stats |= dict.fromkeys(many, brokers[1].url)
    brokers[1].stats |= dict.fromkeys(many, stats())
    load.consumers([*many, A])
    brokers[1].manner = staged_brokers.silent
    with pytest.raises(DataPlaneTimeout):
        load.consumers([*many, A])

    assert list(load.consumers([*many, A])) == [A]
    load.close()


def test_a_remembered_owner_that_left_the_cluster_is_not_called(
    brokers: list[StagedBroker], load: ConsumerReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.consumers([A, B])
    before = statistics_requests(brokers[1])
    brokers[0].cluster[:] = [brokers[0].name]
    brokers[0].stats[B] = stats(q=subscription("Shared", "w"))
    monkeypatch.setattr(broker_list, "MIN_REFRESH_SECONDS", 0.0)
    load._brokers.refresh_soon()

    assert [consumer.broker for consumer in load.consumers([B])[B]] == [brokers[0].url]
    assert statistics_requests(brokers[1]) == before


def test_credentials_do_not_follow_a_redirect_out_of_the_cluster(brokers: list[StagedBroker]) -> None:
    session = bearer_session(PulsarAccess(admin_url=brokers[0].url, token="t"))
    load = reading(brokers, session=session)
    with StagedBroker() as foreign:
        for one in brokers:
            one.stats[A] = foreign.url
        with pytest.raises(DataPlaneUnavailable, match="not a broker of the cluster"):
            load.consumers([A])
        assert foreign.requests == []
    assert {headers["Authorization"] for one in brokers for _, headers in one.requests} == {"Bearer t"}
    load.close()


def test_brokers_that_send_to_each_other_are_left(brokers: list[StagedBroker], load: ConsumerReader) -> None:
    brokers[0].stats[A] = brokers[1].url

    with pytest.raises(DataPlaneUnavailable, match="in a loop"):
        load.consumers([A])


def test_a_document_that_is_no_statistics_is_an_unreadable_answer(
    brokers: list[StagedBroker], load: ConsumerReader
) -> None:
    brokers[1].stats[B] = [stats()]

    assert list(load.consumers([A, B])) == [A]
    with pytest.raises(DataPlaneUnavailable, match="no statistics"):
        load.consumers([B])


@pytest.mark.parametrize("name", ["persistent://t/orders", "t/orders", "persistent://orders"])
def test_a_name_that_lacks_a_part_is_refused(load: ConsumerReader, name: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{name}' is not a topic; name it as persistent://tenant/"):
        load.consumers([name])


def test_a_name_without_its_namespace_is_completed_as_pulsar_completes_it(
    brokers: list[StagedBroker], load: ConsumerReader
) -> None:
    brokers[0].stats["persistent://public/default/orders"] = stats(s=subscription("Failover", "pod-1"))
    brokers[1].stats["persistent://public/default/orders"] = brokers[0].url

    assert [consumer.name for consumer in load.consumers(["orders"])["orders"]] == ["pod-1"]
