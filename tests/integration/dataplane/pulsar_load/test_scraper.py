"""Counters from pages over real HTTP: brokers that are slow, drip, die, restart, and topics that move."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import requests

from controller.dataplane.base import Counters
from controller.dataplane.pulsar_load import brokers as broker_list
from controller.dataplane.pulsar_load.scraper import CounterScraper
from controller.domain.errors import DataPlaneTimeout, DataPlaneUnavailable
from tests.support import staged_brokers
from tests.support.staged_brokers import Manner, StagedBroker, Topic

A, B, C = (f"persistent://t/n/orders-segment-{one}" for one in ("0000-7fff-1", "8000-bfff-2", "c000-ffff-3"))
SHORT_SECONDS, LONG_SECONDS = 1.5, 60.0


@pytest.fixture
def brokers() -> Iterator[list[StagedBroker]]:
    """Two brokers of one cluster: the first has A and B, the second C."""
    with ExitStack() as stack:
        found = [stack.enter_context(StagedBroker()) for _ in range(2)]
        for one in found:
            one.cluster[:] = [other.name for other in found]
        found[0].topics |= {A: Topic(10, {"s": 4}), B: Topic(20)}
        found[1].topics[C] = Topic(30, {"s": 1, 'q"uo,te': 2})
        yield found


@pytest.fixture
def load(brokers: list[StagedBroker]) -> Iterator[CounterScraper]:
    """Reads both, patiently."""
    load = loading(brokers)
    yield load
    load.close()


def loading(brokers: list[StagedBroker], page_seconds: float = 8.0) -> CounterScraper:
    """With this time for a page; the first broker is asked for the list."""
    session = requests.Session()
    listed = broker_list.BrokerList(session, [brokers[0].url])
    return CounterScraper(session, listed, deadline_seconds=page_seconds)


def figures(found: Counters) -> tuple[int, int, int, int]:
    """Its four counters."""
    return found.msg_in, found.byte_in, found.msg_out, found.byte_out


def test_counters_of_every_broker_come_with_their_source(
    brokers: list[StagedBroker], load: CounterScraper
) -> None:
    found = load.sample([A, B, C, "persistent://t/n/none"])

    assert {name: figures(one) for name, one in found.items()} == {
        A: (10, 1000, 4, 400),
        B: (20, 2000, 0, 0),
        C: (30, 3000, 3, 300),
    }
    assert [found[name].source for name in (A, B, C)] == [
        f"{one.name}@20261121T190848Z" for one in (brokers[0], brokers[0], brokers[1])
    ]
    assert found[A].backing_topic == A


def test_nobody_is_asked_for_nothing(brokers: list[StagedBroker], load: CounterScraper) -> None:
    assert load.sample([]) == {}
    assert brokers[0].requests == []


def test_pages_are_asked_for_uncompressed(brokers: list[StagedBroker], load: CounterScraper) -> None:
    load.sample([A])

    assert brokers[0].requests[-1][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("manner", "page_seconds"),
    [
        (staged_brokers.silent, SHORT_SECONDS),
        (staged_brokers.stalling, SHORT_SECONDS),
        (staged_brokers.dripping, SHORT_SECONDS),
        (staged_brokers.dying, LONG_SECONDS),
        (staged_brokers.endless_length, LONG_SECONDS),
        (staged_brokers.failing, LONG_SECONDS),
        (staged_brokers.refusing, LONG_SECONDS),
        (staged_brokers.talking_of_something_else, LONG_SECONDS),
    ],
)
def test_a_broker_that_misbehaves_is_silent_and_the_others_are_heard(
    brokers: list[StagedBroker], manner: Manner, page_seconds: float
) -> None:
    load = loading(brokers, page_seconds=page_seconds)
    brokers[1].manner = manner
    assert set(load.sample([A, C])) == {A}

    brokers[1].manner = staged_brokers.whole
    assert set(load.sample([A, C])) == {A, C}
    load.close()


@pytest.mark.parametrize(
    ("manner", "error", "message"),
    [
        (staged_brokers.dripping, DataPlaneTimeout, "whole page in time|completely in time"),
        (staged_brokers.dying, DataPlaneUnavailable, "closed the connection at /metrics/"),
        (staged_brokers.failing, DataPlaneUnavailable, "answers /metrics/ with 500"),
        (staged_brokers.refusing, DataPlaneUnavailable, "check the token"),
        (staged_brokers.talking_of_something_else, DataPlaneUnavailable, "not a metrics page"),
    ],
)
def test_when_no_broker_says_anything_the_call_says_why(
    brokers: list[StagedBroker], manner: Manner, error: type[Exception], message: str
) -> None:
    for one in brokers:
        one.manner = manner
    load = loading(brokers, page_seconds=SHORT_SECONDS)

    with pytest.raises(error, match=message):
        load.sample([A, C])
    load.close()


def test_a_broker_left_behind_is_not_asked_twice_at_once(brokers: list[StagedBroker]) -> None:
    load = loading(brokers, page_seconds=SHORT_SECONDS)
    brokers[1].manner = staged_brokers.dripping_its_head

    assert [set(load.sample([A, C])) for _ in range(2)] == [{A}] * 2
    assert [path for path, _ in brokers[1].requests] == ["/metrics/"]
    load.close()


def test_a_broker_that_is_gone_is_silent_until_the_list_names_others(brokers: list[StagedBroker]) -> None:
    brokers[0].cluster[:] = [brokers[0].name, "127.0.0.1:1"]
    load = loading(brokers)

    assert set(load.sample([A, C])) == {A}
    load.close()


def test_nothing_is_kept_of_a_broker_that_left_the_list_without_an_answer(
    brokers: list[StagedBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_list, "MIN_REFRESH_SECONDS", 0.0)
    brokers[0].cluster[:] = [brokers[0].name, "127.0.0.1:1"]
    load = loading(brokers)
    load.sample([A])
    brokers[0].cluster[:] = [brokers[0].name]

    assert set(load.sample([A])) == {A}
    assert list(load._reading) == [brokers[0].name]
    load.close()


def test_a_restarted_broker_is_another_source(brokers: list[StagedBroker], load: CounterScraper) -> None:
    before = load.sample([A])[A]
    brokers[0].started_seconds += 60
    brokers[0].topics[A] = Topic(12, {"s": 5})

    after = load.sample([A])[A]
    assert (after.source, figures(after)) == (f"{brokers[0].name}@20261121T190948Z", (12, 1200, 5, 500))
    assert before.source != after.source


def test_a_topic_that_moves_counts_for_its_new_owner(
    brokers: list[StagedBroker], load: CounterScraper
) -> None:
    load.sample([A])
    del brokers[0].topics[A]
    brokers[1].topics[A] = Topic(1)

    moved = load.sample([A])[A]
    assert (moved.source.partition("@")[0], figures(moved)) == (brokers[1].name, (1, 100, 0, 0))

    del brokers[1].topics[A]
    brokers[0].topics[A] = Topic(2)
    assert figures(load.sample([A])[A]) == (2, 200, 0, 0)  # nothing carried over from the stay before


def test_a_topic_two_brokers_report_at_once_is_one(brokers: list[StagedBroker], load: CounterScraper) -> None:
    brokers[1].topics[A] = Topic(1)

    assert figures(load.sample([A])[A]) in ((10, 1000, 4, 400), (1, 100, 0, 0))


def test_a_deleted_subscription_takes_nothing_away_and_begins_a_series(
    brokers: list[StagedBroker], load: CounterScraper
) -> None:
    before = load.sample([C])[C]
    del brokers[1].topics[C].out["s"]
    after = load.sample([C])[C]
    later = load.sample([C])[C]

    assert figures(before) == figures(after) == figures(later)
    assert after.source == later.source == f"{before.source}~{after.instant_ms}"


def test_a_topic_of_which_the_page_says_half_is_silent(
    brokers: list[StagedBroker], load: CounterScraper
) -> None:
    page = (
        brokers[0]
        .page()
        .replace(
            f'pulsar_in_bytes_total{{cluster="standalone",namespace="t/n",topic="{A}"'.encode(), b"other{x="
        )
    )
    brokers[0].page = lambda: page  # type: ignore[method-assign]

    assert set(load.sample([A, B])) == {B}


def test_brokers_that_count_namespaces_alone_are_an_error_that_names_their_setting(
    brokers: list[StagedBroker], load: CounterScraper
) -> None:
    """The collector calls its tick partial then, and logs the error."""
    for one in brokers:
        page = re.sub(rb',topic="[^"\n]*"', b"", one.page())
        one.page = lambda page=page: page  # type: ignore[method-assign,misc]

    with pytest.raises(DataPlaneUnavailable, match="set exposeTopicLevelMetricsInPrometheus=true"):
        load.sample([A, C])
