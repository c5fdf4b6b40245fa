"""Several runners claim at once: each sort of operation has one holder, and nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pytest
from sqlalchemy import Connection, text

from controller.domain.operation import Operation, OperationState
from controller.domain.reshape import plan_split
from controller.store.journal import claims
from tests.support.store_driver import CALL_TIMEOUT_SECONDS, RUNNER, StoreDriver

PLANE = "embedded"


class ClaimPart(NamedTuple):
    """Which part of the claim takes it: by its state, and by the planes on which calls are shared."""

    is_fenced: bool
    sharing: tuple[str, ...]


SORTS = {
    "fresh": ClaimPart(is_fenced=False, sharing=(PLANE,)),
    "fenced": ClaimPart(is_fenced=True, sharing=(PLANE,)),
    "fenced alone": ClaimPart(is_fenced=True, sharing=()),
    "other": ClaimPart(is_fenced=False, sharing=()),
}


def one_that_is(driver: StoreDriver, sort: ClaimPart, topic_name: str = "topic://t/n/a") -> Operation:
    """Due, and nobody's."""
    topic = driver.create(topic_name)
    operation = driver.intend(topic.topic_id, lambda layout: plan_split(layout, 0))
    if sort.is_fenced:
        held = driver.run(operation, until=OperationState.FENCING)
        driver.do(claims.record_failure, held, RUNNER, "the broker was away", 0.0)
    return operation


def claimed(
    tx: Connection, runner: str, sharing: Collection[str], *, limit: int = 4, fenced_limit: int = 4
) -> list[int]:
    """Ids of what the runner got; it waits for no row longer than a moment."""
    tx.execute(text("SET LOCAL lock_timeout = '500ms'"))
    got = claims.claim(
        tx,
        runner=runner,
        lease_seconds=60.0,
        call_timeout_seconds=CALL_TIMEOUT_SECONDS,
        limit=limit,
        fenced_limit=fenced_limit,
        sharing_planes=sharing,
    )
    return [one.operation.operation_id for one in got]


@pytest.mark.parametrize("sort", SORTS)
def test_one_that_somebody_is_claiming_is_neither_waited_for_nor_taken(
    driver: StoreDriver, sort: str
) -> None:
    operation, sharing = one_that_is(driver, SORTS[sort]), SORTS[sort].sharing

    with driver.store.transaction() as first, driver.store.transaction() as second:
        assert claimed(first, "a", sharing) == [operation.operation_id]
        assert claimed(second, "b", sharing) == []


@pytest.mark.parametrize("sort", SORTS)
def test_one_that_somebody_holds_is_nobody_elses_until_no_call_of_its_can_be_under_way(
    driver: StoreDriver, sort: str
) -> None:
    operation, sharing = one_that_is(driver, SORTS[sort]), SORTS[sort].sharing
    expire = "UPDATE cleave.operation SET claim_expires_at = clock_timestamp() - make_interval(secs => :ago)"
    term = "SELECT claim_term FROM cleave.operation WHERE operation_id = :id"
    assert driver.do(claimed, "a", sharing) == [operation.operation_id]
    [(first_term,)] = driver.sql(term, id=operation.operation_id)

    assert driver.do(claimed, "b", sharing) == []
    driver.sql(f"{expire} WHERE claimed_by = 'a'", ago=CALL_TIMEOUT_SECONDS / 2)
    assert driver.do(claimed, "b", sharing) == []
    driver.sql(f"{expire} WHERE claimed_by = 'a'", ago=CALL_TIMEOUT_SECONDS * 2)
    assert driver.do(claimed, "b", sharing) == [operation.operation_id]
    assert driver.sql(term, id=operation.operation_id) == [(first_term + 1,)]


@pytest.mark.parametrize(("limit", "fenced_limit"), [(4, 1), (1, 4)])
def test_no_more_of_what_is_fenced_is_taken_than_can_go_on_at_once(
    driver: StoreDriver, limit: int, fenced_limit: int
) -> None:
    """Who holds one and works on another keeps a range without a log that somebody else would give it."""
    first, second = (
        one_that_is(driver, SORTS["fenced"], f"topic://t/n/{name}").operation_id for name in "ab"
    )
    limits = {"limit": limit, "fenced_limit": fenced_limit}

    assert driver.do(lambda tx: claimed(tx, "a", (PLANE,), **limits)) == [first]
    assert driver.do(lambda tx: claimed(tx, "b", (PLANE,), **limits)) == [second]


def test_what_is_over_is_claimed_by_nobody(driver: StoreDriver) -> None:
    done = driver.create().topic_id

    assert driver.do(claimed, "a", (PLANE,)) == []
    assert driver.sql("SELECT state FROM cleave.operation WHERE topic_id = :id", id=done) == [("done",)]
