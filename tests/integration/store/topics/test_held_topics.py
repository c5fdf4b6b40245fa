"""Topics that are held or unverified, as their rows tell."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from controller.domain.reshape import plan_split
from controller.store.journal import claims, deletion_entries
from controller.store.topics import held_topics
from tests.support.store_driver import RUNNER, SOMEBODY_WAITS, StoreDriver
from tests.support.waiting import wait_until


def test_a_held_topic_is_not_verified_before_it_is_released(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    assert driver.do(held_topics.hold, topic_id, "evidence")
    assert not driver.do(held_topics.hold, topic_id, "evidence")
    assert driver.do(held_topics.hold, topic_id, "more evidence")

    assert driver.do(held_topics.verify, [topic_id]) == []
    driver.do(held_topics.release, topic_id)
    assert driver.do(held_topics.topics_that_may_not_act, [topic_id]) == [topic_id]
    assert driver.do(held_topics.verify, [topic_id]) == [topic_id]
    assert driver.do(held_topics.verify, [topic_id]) == []
    assert driver.do(held_topics.topics_that_may_not_act, [topic_id]) == []


AHEAD = "interval '10 minutes'"
CLAIM_LEFT = """
    SELECT extract(epoch FROM claim_expires_at - clock_timestamp()), claimed_at <= clock_timestamp()
      FROM cleave.operation WHERE finished_at IS NULL
"""
"""Seconds that the claim lasts, and whether it was made in the past."""


@pytest.mark.parametrize("by", ["verify", "hold", "renew"])
def test_a_claim_of_a_server_whose_clock_was_ahead_ends_after_its_length(
    driver: StoreDriver, by: str
) -> None:
    topic_id = driver.create().topic_id
    claimed = driver.claim(driver.intend(topic_id, lambda layout: plan_split(layout, 0)))
    [(length, _)] = driver.sql(CLAIM_LEFT)
    driver.sql(f"""
        UPDATE cleave.operation SET claimed_at = claimed_at + {AHEAD}, claim_expires_at = claim_expires_at + {AHEAD}
         WHERE finished_at IS NULL RETURNING 1""")
    driver.do(held_topics.doubt, [topic_id])

    if by == "verify":
        assert driver.do(held_topics.verify, [topic_id]) == [topic_id]
    elif by == "hold":
        assert driver.do(held_topics.hold, topic_id, "evidence")
    else:
        assert driver.do(claims.renew, [claimed], RUNNER, 0.1) == {claimed.operation_id}

    [(left, is_past)] = driver.sql(CLAIM_LEFT)
    assert is_past
    assert float(left) == pytest.approx(float(length), abs=15)


def test_a_claim_that_is_renewed_during_the_verification_keeps_its_end(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    claimed = driver.claim(driver.intend(topic_id, lambda layout: plan_split(layout, 0)))
    driver.sql(f"UPDATE cleave.operation SET claimed_at = claimed_at + {AHEAD} WHERE finished_at IS NULL")
    driver.do(held_topics.doubt, [topic_id])
    ends = "SELECT claim_expires_at FROM cleave.operation WHERE finished_at IS NULL"

    with ThreadPoolExecutor(1) as other:
        with driver.store.transaction() as tx:
            tx.execute(text(f"{ends} FOR UPDATE"))
            verified = other.submit(driver.do, held_topics.verify, [topic_id])
            wait_until(lambda: driver.sql(SOMEBODY_WAITS))
            claims.renew(tx, [claimed], RUNNER, 600.0)
            renewed = tx.execute(text(ends)).scalar_one()
        assert verified.result(30) == [topic_id]

    assert driver.sql(ends) == [(renewed,)]


def test_a_claim_of_this_server_stays_as_it_is_when_its_topic_is_verified(driver: StoreDriver) -> None:
    topic_id = driver.create().topic_id
    driver.claim(driver.intend(topic_id, lambda layout: plan_split(layout, 0)))
    before = driver.sql("SELECT claim_expires_at, row_version FROM cleave.operation")
    driver.do(held_topics.doubt, [topic_id])

    assert driver.do(held_topics.verify, [topic_id]) == [topic_id]

    assert driver.sql("SELECT claim_expires_at, row_version FROM cleave.operation") == before


def test_topics_with_work_under_way_are_compared_first_and_held_ones_last(driver: StoreDriver) -> None:
    held, idle, busy = (driver.create(f"topic://t/n/{name}").topic_id for name in ("a", "b", "c"))
    driver.intend(busy, lambda layout: plan_split(layout, 0))
    driver.do(held_topics.doubt, [held, idle, busy])
    driver.do(held_topics.hold, held, "evidence")

    assert driver.do(held_topics.unverified_topics, limit=3) == [busy, idle, held]
    assert driver.do(held_topics.unverified_topics, limit=1) == [busy]


def test_the_work_on_a_held_topic_wakes_nobody(driver: StoreDriver) -> None:
    """A worker that woke for it could claim none of it, and would look for it fifty times a second."""
    topic_id = driver.create().topic_id
    driver.intend(topic_id, lambda layout: plan_split(layout, 0))
    driver.do(
        deletion_entries.add,
        data_plane="embedded",
        topic_id=topic_id,
        backing_topics={9: "log"},
        reason="test",
    )

    def due() -> list[bool]:
        operation_due = driver.do(claims.next_due, call_timeout_seconds=1.0)
        return [one is not None for one in (operation_due, driver.do(deletion_entries.next_due))]

    assert due() == [True, True]
    driver.do(held_topics.hold, topic_id, "evidence")
    assert due() == [False, False]
    driver.do(held_topics.release, topic_id)
    assert due() == [True, True]
