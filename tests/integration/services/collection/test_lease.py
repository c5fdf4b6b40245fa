"""The lease of a collection on a real store: which process has the turn, and how long the process may believe it."""

from __future__ import annotations

from typing import Any

import pytest

from controller.domain.errors import StoreUnavailable
from controller.services.collection.lease import CollectionLease
from controller.store import leases
from tests.support.bench import Bench
from tests.support.manual_clock import ManualClock

TTL_SECONDS = 3600.0


def lease(bench: Bench, holder: str, incarnation: str | None = None, **options: Any) -> CollectionLease:
    """The lease of a process that collects every topic of the embedded data plane."""
    known: dict[str, Any] = {
        "prefix": "",
        "data_planes": ["embedded"],
        "ttl_seconds": TTL_SECONDS,
        "clock": ManualClock(),
    }
    return CollectionLease(bench.store, holder, incarnation, **(known | options))


def expire(bench: Bench) -> None:
    """End every lease at the database."""
    bench.execute("UPDATE cleave.lease SET expires_at = clock_timestamp()")


def test_one_process_has_the_turn_until_it_resigns(bench: Bench) -> None:
    first, second = lease(bench, "first"), lease(bench, "second")

    assert [first.take(), first.take(), second.take()] == [1, 1, None]
    assert (first.is_held, second.is_held) == (True, False)

    first.resign()
    assert not first.is_held
    assert [second.take(), first.take()] == [2, None]


def test_a_process_that_lost_the_lease_knows_at_its_next_turn(bench: Bench) -> None:
    first, second = lease(bench, "first"), lease(bench, "second")
    assert first.take()
    expire(bench)
    assert second.take()

    assert (first.take(), first.is_held) == (None, False)


def test_a_process_that_lost_the_lease_resigns_no_later_term(bench: Bench) -> None:
    first, second, third = (lease(bench, name) for name in ("first", "second", "third"))
    assert first.take()
    expire(bench)
    assert second.take()

    first.resign()

    assert not third.take()


def test_two_processes_of_one_name_do_not_share_the_lease(bench: Bench) -> None:
    first, second = lease(bench, "worker", "first start"), lease(bench, "worker", "second start")

    assert [first.take(), second.take(), first.take()] == [1, None, 1]


def test_processes_compete_for_the_same_topics_and_data_planes_only(bench: Bench) -> None:
    assert lease(bench, "all", data_planes=["embedded", "pulsar"]).take()

    assert not lease(bench, "same", data_planes=["pulsar", "embedded"]).take()
    assert lease(bench, "fewer", data_planes=["embedded"]).take()
    assert lease(bench, "other", data_planes=["embedded", "pulsar"], prefix="topic://other/").take()


def test_the_turn_is_counted_from_the_question_and_ends_by_the_own_clock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    mine = lease(bench, "mine", clock=clock)
    ask = leases.renew_or_acquire

    def slowly(*arguments: Any) -> leases.Lease | None:
        clock.seconds += TTL_SECONDS - 1
        return ask(*arguments)

    monkeypatch.setattr(leases, "renew_or_acquire", slowly)
    assert mine.take()
    assert mine.is_held

    clock.seconds += 1
    assert not mine.is_held


def test_a_process_resigns_although_the_database_is_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = lease(bench, "mine")
    assert mine.take()

    def away(*_: object) -> None:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(leases, "resign", away)
    mine.resign()
    assert not mine.is_held
