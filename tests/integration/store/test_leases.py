"""Leases: one holder at a time, terms that only rise, expiry by the database's clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.domain.errors import TopicNotFound
from controller.store import leases
from controller.store.leases import Lease
from tests.support.drawn import cases
from tests.support.store_driver import StoreDriver
from tests.support.waiting import wait_until

LONG = 3600.0
OVER = 0.0  # a lease of no length has expired by the next statement


def held(lease: Lease | None) -> Lease:
    """Return the lease, which must not be None."""
    assert lease is not None
    return lease


def test_a_lease_is_one_holders_until_it_expires_and_then_the_next_ones_at_a_higher_term(
    driver: StoreDriver,
) -> None:
    first = held(driver.do(leases.acquire, "shard/0", "a", LONG))

    assert (first.holder, first.term) == ("a", 1)
    assert driver.do(leases.acquire, "shard/0", "b", LONG) is None
    assert driver.do(leases.acquire, "shard/0", "a", LONG) is None

    driver.do(leases.renew, first, OVER)
    second = held(driver.do(leases.acquire, "shard/0", "b", LONG))

    assert (second.holder, second.term) == ("b", 2)


def test_only_the_term_in_force_can_be_renewed(driver: StoreDriver) -> None:
    lease = held(driver.do(leases.acquire, "shard/0", "a", LONG))

    renewed = held(driver.do(leases.renew, lease, 2 * LONG))

    assert (renewed.term, renewed.expires_at > lease.expires_at) == (1, True)

    driver.do(leases.resign, lease)

    assert driver.do(leases.renew, lease, LONG) is None
    again = held(driver.do(leases.acquire, "shard/0", "a", LONG))
    assert again.term == 2
    assert driver.do(leases.renew, lease, LONG) is None
    assert driver.do(leases.renew, again, LONG) is not None


def test_resigning_ends_this_very_term_and_no_other(driver: StoreDriver) -> None:
    stale = held(driver.do(leases.acquire, "shard/0", "a", OVER))
    fresh = held(driver.do(leases.acquire, "shard/0", "a", LONG))

    driver.do(leases.resign, stale)

    assert driver.do(leases.still_held, [fresh])


def test_a_term_that_a_fail_over_gave_to_another_holder_is_no_longer_the_first_ones(
    driver: StoreDriver,
) -> None:
    lease = held(driver.do(leases.acquire, "shard/0", "a", LONG))
    driver.sql("UPDATE cleave.lease SET holder = 'b'")

    assert driver.do(leases.renew, lease, LONG) is None
    assert not driver.do(leases.still_held, [lease])
    driver.do(leases.resign, lease)
    assert [one.holder for one in driver.do(leases.live_leases, "shard/")] == ["b"]


def test_a_holder_goes_on_with_its_own_lease_but_takes_an_expired_one_anew(driver: StoreDriver) -> None:
    terms = [
        driver.do(leases.renew_or_acquire, "worker/a", "a", ttl_seconds)
        for ttl_seconds in (LONG, LONG, OVER, LONG)
    ]

    assert [lease.term for lease in terms if lease is not None] == [1, 1, 1, 2]
    assert driver.do(leases.renew_or_acquire, "worker/a", "b", LONG) is None


def test_a_lease_of_a_server_whose_clock_was_ahead_ends_after_its_length(driver: StoreDriver) -> None:
    dead = held(driver.do(leases.acquire, "shard/0", "a", 60.0))
    live = held(driver.do(leases.acquire, "shard/1", "b", LONG))
    here = held(driver.do(leases.acquire, "shard/2", "c", LONG))
    driver.sql("""
        UPDATE cleave.lease SET renewed_at = renewed_at + interval '2 hours', expires_at = expires_at + interval '2 hours'
         WHERE holder <> 'c' RETURNING 1""")

    for _ in range(2):
        driver.do(leases.limit_to_clock)

    left = "SELECT extract(epoch FROM expires_at - renewed_at), renewed_at <= clock_timestamp() FROM cleave.lease ORDER BY name"
    assert [(round(seconds), past) for seconds, past in driver.sql(left)] == [
        (60, True),
        (LONG, True),
        (LONG, True),
    ]
    assert driver.do(leases.still_held, [dead, live, here]), "no holder loses what it trusts"
    assert driver.do(leases.read, "shard/2") == here


def test_a_lease_that_was_renewed_or_taken_after_the_clock_went_back_keeps_its_length(
    driver: StoreDriver,
) -> None:
    renewed, kept, resigned = (
        held(driver.do(leases.acquire, f"shard/{n}", "a", LONG, "first")) for n in range(3)
    )
    driver.do(leases.resign, resigned)
    driver.sql("UPDATE cleave.lease SET renewed_at = renewed_at + interval '2 hours'")
    present = [
        held(driver.do(leases.renew, renewed, LONG)),
        held(driver.do(leases.renew_or_acquire, kept.name, "a", LONG, "first")),
        held(driver.do(leases.acquire, resigned.name, "b", LONG, "second")),
    ]

    driver.do(leases.limit_to_clock)

    assert [driver.do(leases.read, lease.name) for lease in present] == present


def test_a_lease_that_is_in_use_is_left_to_its_holder(driver: StoreDriver) -> None:
    lease = held(driver.do(leases.acquire, "shard/0", "a", LONG))
    driver.sql("UPDATE cleave.lease SET renewed_at = renewed_at + interval '2 hours' RETURNING 1")
    with driver.store.transaction() as tx:
        assert leases.still_held(tx, [lease])
        driver.do(leases.limit_to_clock)

    assert driver.do(leases.read, "shard/0") == lease


def test_live_leases_are_those_in_force_whose_names_begin_so(driver: StoreDriver) -> None:
    driver.do(leases.acquire, "worker/a", "a", LONG)
    driver.do(leases.acquire, "worker/b", "b", OVER)
    driver.do(leases.acquire, "worker_x", "c", LONG)
    driver.do(leases.acquire, "shard/0", "a", LONG)

    assert [lease.name for lease in driver.do(leases.live_leases, "worker/")] == ["worker/a"]

    driver.do(leases.resign_all, "a")

    assert driver.do(leases.live_leases, "") == driver.do(leases.live_leases, "worker_")


def test_leases_are_held_all_or_not_at_all(driver: StoreDriver) -> None:
    mine = [driver.do(leases.acquire, f"shard/{n}", "a", LONG) for n in range(3)]
    held = [lease for lease in mine if lease is not None]

    assert driver.do(leases.still_held, [])
    assert driver.do(leases.still_held, held)
    later_term = Lease(held[0].name, held[0].holder, held[0].term + 1, held[0].expires_at)
    assert not driver.do(leases.still_held, [*held[1:], later_term])

    driver.do(leases.resign, held[1])

    assert not driver.do(leases.still_held, held)


def test_a_lease_checked_in_a_transaction_cannot_be_taken_over_before_its_end(driver: StoreDriver) -> None:
    lease = held(driver.do(leases.acquire, "shard/0", "a", LONG))
    with ThreadPoolExecutor(1) as pool, driver.store.transaction() as tx:
        assert leases.still_held(tx, [lease])
        taking_over = pool.submit(driver.sql, "UPDATE cleave.lease SET holder = 'b', term = term + 1")
        waiting = (
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        wait_until(lambda: driver.sql(waiting), message="the takeover waits")
        assert not taking_over.done()
    taking_over.result()

    assert not driver.do(leases.still_held, [lease])


def test_of_many_who_reach_for_a_lease_at_once_one_gets_it(driver: StoreDriver) -> None:
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda holder: driver.do(leases.acquire, "shard/0", holder, LONG), "abcdefgh"))

    assert len([lease for lease in got if lease is not None]) == 1


@settings(
    max_examples=cases(10, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["acquire", "renew", "resign"]),
            st.sampled_from("ab"),
            st.sampled_from([LONG, OVER]),
        ),
        max_size=12,
    ),
    name=st.uuids(),
)
def test_whatever_is_done_a_term_never_has_two_holders(
    driver: StoreDriver, acts: list[tuple[str, str, float]], name: object
) -> None:
    holder_of: dict[int, str] = {}
    held: dict[str, Lease] = {}
    for act, holder, ttl_seconds in acts:
        if act == "acquire":
            lease = driver.do(leases.acquire, str(name), holder, ttl_seconds)
        elif holder not in held:
            continue
        elif act == "renew":
            lease = driver.do(leases.renew, held[holder], ttl_seconds)
        else:
            driver.do(leases.resign, held[holder])
            continue
        if lease is not None:
            held[holder] = lease
            assert holder_of.setdefault(lease.term, lease.holder) == lease.holder
            assert lease.term == max(holder_of)


def test_a_leader_is_found_by_the_topics_name_while_both_of_its_leases_are_in_force(
    driver: StoreDriver,
) -> None:
    topic = driver.create()

    def leader() -> tuple[int, str | None]:
        return driver.do(leases.find_leader, topic.name, 8)

    assert leader() == (topic.topic_id, None)
    shard = held(driver.do(leases.acquire, f"shard/{topic.topic_id % 8}", "a", LONG))
    assert leader() == (topic.topic_id, None), "the worker itself has no lease"
    worker = held(driver.do(leases.acquire, "worker/a", "a", LONG))
    driver.sql("UPDATE cleave.lease SET address = 'http://a' WHERE name = 'worker/a' RETURNING 1")
    assert leader() == (topic.topic_id, "http://a")

    driver.do(leases.renew, worker, OVER)
    assert leader() == (topic.topic_id, None)
    driver.do(leases.renew, worker, LONG)
    driver.do(leases.resign, shard)
    assert leader() == (topic.topic_id, None)

    driver.delete(topic.topic_id)
    with pytest.raises(TopicNotFound, match=topic.name):
        leader()


def test_only_the_holder_of_a_lease_announces_its_address(driver: StoreDriver) -> None:
    driver.do(leases.acquire, "worker/a", "a", LONG)
    driver.do(leases.announce, "worker/a", "a", "http://a")
    driver.do(leases.announce, "worker/a", "b", "http://b")

    assert driver.do(leases.address_of_holder, "worker/a") == "http://a"
