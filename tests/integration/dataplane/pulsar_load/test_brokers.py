"""The list of brokers: asked for now and then, at whichever address answers, and kept while none does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import requests

from controller.dataplane.pulsar_load import brokers as module
from controller.dataplane.pulsar_load.brokers import Broker, BrokerList
from controller.domain.errors import DataPlaneUnavailable, InvalidInput
from tests.support.staged_brokers import StagedBroker

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def broker() -> Iterator[StagedBroker]:
    """One that lists itself and another."""
    with StagedBroker() as broker:
        broker.cluster.append("other.example:8080")
        yield broker


def brokers_of(found: BrokerList) -> list[Broker]:
    """Asked within five seconds."""
    return list(found.current(time.monotonic() + 5.0))


def test_brokers_answer_where_the_list_says_by_the_scheme_of_the_admin_address(broker: StagedBroker) -> None:
    assert brokers_of(BrokerList(requests.Session(), [broker.url + "/"])) == [
        Broker(broker.name, broker.url),
        Broker("other.example:8080", "http://other.example:8080"),
    ]
    assert broker.requests[0][0] == "/admin/v2/brokers"


def test_a_cluster_and_a_pattern_of_addresses_may_be_named(broker: StagedBroker) -> None:
    found = BrokerList(
        requests.Session(), [broker.url], cluster="east", broker_url="https://{host}.internal:8443/"
    )

    assert [one.url for one in brokers_of(found)] == [
        "https://127.0.0.1.internal:8443",
        "https://other.example.internal:8443",
    ]
    assert broker.requests[0][0] == "/admin/v2/brokers/east"


def test_it_is_asked_for_once_and_again_at_once_after_a_doubt(
    broker: StagedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_REFRESH_SECONDS", 0.0)
    found = BrokerList(requests.Session(), [broker.url])
    for _ in range(3):
        brokers_of(found)
    assert len(broker.requests) == 1

    broker.cluster.pop()
    found.refresh_soon()
    assert brokers_of(found) == [Broker(broker.name, broker.url)]


def test_the_last_known_brokers_serve_while_nobody_answers(
    broker: StagedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_REFRESH_SECONDS", 0.0)
    found = BrokerList(requests.Session(), [broker.url])
    before = brokers_of(found)
    broker.cluster.clear()
    found.refresh_soon()

    assert brokers_of(found) == before
    assert len(broker.requests) == 2


def test_another_address_is_asked_when_the_first_does_not_answer(broker: StagedBroker) -> None:
    assert len(brokers_of(BrokerList(requests.Session(), [NOBODY, broker.url]))) == 2


@pytest.mark.parametrize("cluster", [[], {}, ["a", 1], "a"])
def test_what_is_no_list_of_brokers_is_refused(broker: StagedBroker, cluster: list[str]) -> None:
    broker.cluster = cluster

    with pytest.raises(DataPlaneUnavailable, match="lists no brokers"):
        brokers_of(BrokerList(requests.Session(), [broker.url]))


def test_nobody_anywhere_is_an_error_that_names_an_address() -> None:
    with pytest.raises(DataPlaneUnavailable, match=NOBODY):
        brokers_of(BrokerList(requests.Session(), [NOBODY]))


@pytest.mark.parametrize(
    "pattern",
    [
        "https://{name}",
        "https://{",
        "{0}",
        "https://{host.name}",
        "https://{host[0]}",
        "https://{host}:{port:d}",
    ],
)
def test_a_pattern_that_cannot_be_filled_in_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="only"):
        BrokerList(requests.Session(), [NOBODY], broker_url=pattern)
