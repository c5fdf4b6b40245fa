"""Claims of fresh reshapes and of what else is due: nobody waits for ever, and what is fenced waits for nobody."""

from __future__ import annotations

import pytest

from controller.domain.operation import Operation, OperationState
from controller.domain.reshape import plan_split
from controller.store.journal import claims
from controller.store.journal.claims import Claim
from tests.support.store_driver import CALL_TIMEOUT_SECONDS, RUNNER, StoreDriver


def claim(driver: StoreDriver, *, limit: int, sharing: tuple[str, ...] = ()) -> list[Claim]:
    return driver.do(
        claims.claim,
        runner=RUNNER,
        lease_seconds=60.0,
        call_timeout_seconds=CALL_TIMEOUT_SECONDS,
        limit=limit,
        fenced_limit=limit if sharing else 1,
        sharing_planes=sharing,
    )


def splits(driver: StoreDriver, count: int) -> list[Operation]:
    """Asked for on topics of their own, and not begun."""
    found = []
    for number in range(count):
        topic = driver.create(f"topic://t/n/split-{number}")
        found.append(driver.intend(topic.topic_id, lambda layout: plan_split(layout, 0)))
    return found


def fence_and_fail(driver: StoreDriver, operation: Operation) -> None:
    """It announced its fence, failed there once, and its delay is over."""
    held = driver.run(operation, until=OperationState.FENCING)
    driver.do(claims.record_failure, held, RUNNER, "the broker was away", 0.0)


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("shares_calls", [True, False])
def test_what_is_fenced_goes_before_all_that_is_fresh(
    driver: StoreDriver, limit: int, *, shares_calls: bool
) -> None:
    """Its range has no writable log until it commits; new requests may come for ever."""
    fenced, *fresh = splits(driver, 4)
    fence_and_fail(driver, fenced)

    claimed = claim(driver, limit=limit, sharing=(fresh[0].data_plane,) if shares_calls else ())

    taken = [one.operation.operation_id for one in claimed]
    assert taken[0] == fenced.operation_id
    beside = fresh[: limit - 1] if shares_calls else []
    assert taken[1:] == [one.operation_id for one in beside]


def test_all_that_is_fenced_shares_calls_at_once(driver: StoreDriver) -> None:
    """After an outage of the plane no range waits for the operations of others."""
    fenced = splits(driver, 5)
    for one in fenced:
        fence_and_fail(driver, one)

    claimed = claim(driver, limit=8, sharing=(fenced[0].data_plane,))

    assert [one.operation.operation_id for one in claimed] == [one.operation_id for one in fenced]
    assert all(one.shares_calls for one in claimed)


def test_reshapes_that_share_calls_are_told_from_the_rest_by_the_planes_given(driver: StoreDriver) -> None:
    first, second, third = splits(driver, 3)

    [alone] = claim(driver, limit=4)
    together = claim(driver, limit=4, sharing=(first.data_plane,))

    assert (alone.operation.operation_id, alone.shares_calls) == (first.operation_id, False)
    assert [one.operation.operation_id for one in together] == [second.operation_id, third.operation_id]
    assert all(one.shares_calls for one in together)


def test_beside_what_shares_calls_one_of_all_else_is_taken(driver: StoreDriver) -> None:
    other = driver.intend_create("topic://t/n/other").operation
    fresh = splits(driver, 3)

    claimed = claim(driver, limit=3, sharing=(fresh[0].data_plane,))

    assert [(one.operation.operation_id, one.shares_calls) for one in claimed] == [
        (other.operation_id, False),
        (fresh[0].operation_id, True),
        (fresh[1].operation_id, True),
    ]


def test_one_that_failed_before_its_fence_goes_by_itself(driver: StoreDriver) -> None:
    """What failed a call for all of them once shall not do so again."""
    failed, fresh = splits(driver, 2)
    driver.do(claims.record_failure, driver.claim(failed), RUNNER, "the broker refused it", 0.0)

    claimed = claim(driver, limit=4, sharing=(fresh.data_plane,))

    assert {one.operation.operation_id: one.shares_calls for one in claimed} == {
        failed.operation_id: False,
        fresh.operation_id: True,
    }


@pytest.mark.parametrize("has_fenced", [False, True])
def test_for_a_limit_of_zero_nothing_is_claimed(driver: StoreDriver, *, has_fenced: bool) -> None:
    first, second = splits(driver, 2)
    if has_fenced:
        fence_and_fail(driver, first)

    assert claim(driver, limit=0, sharing=(second.data_plane,)) == []
    assert claim(driver, limit=0) == []
