"""Claims of fresh reshapes and of what else is due: nobody waits for ever, and what is fenced waits for nobody."""

from __future__ import annotations

import pytest

from controller.domain.operation import Operation, OperationState
from controller.domain.reshape import plan_split
from controller.store.journal import claims as operations
from controller.store.journal import reshapes
from tests.support.store_driver import CALL_TIMEOUT_SECONDS, RUNNER, StoreDriver


def claim(
    driver: StoreDriver, *, limit: int, together: tuple[str, ...] = (), alone: tuple[str, ...] = ()
) -> list[reshapes.Claimed]:
    return driver.do(
        reshapes.claim,
        runner=RUNNER,
        lease_seconds=60.0,
        call_timeout_seconds=CALL_TIMEOUT_SECONDS,
        limit=limit,
        planes_together=together,
        planes_alone=alone,
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
    driver.do(operations.record_failure, held, RUNNER, "the broker was away", 0.0)


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("shares_calls", [True, False])
def test_what_is_fenced_goes_before_all_that_is_fresh(
    driver: StoreDriver, limit: int, *, shares_calls: bool
) -> None:
    """Its range has no writable log until it commits; new requests may come for ever."""
    fenced, *fresh = splits(driver, 4)
    fence_and_fail(driver, fenced)
    planes = {"together" if shares_calls else "alone": (fresh[0].data_plane,)}

    claimed = claim(driver, limit=limit, **planes)

    taken = [one.operation.operation_id for one in claimed]
    assert taken[0] == fenced.operation_id
    assert taken[1:] == [one.operation_id for one in fresh[: limit - 1] if shares_calls]


def test_fresh_reshapes_are_told_from_the_rest_by_the_planes_given(driver: StoreDriver) -> None:
    first, second = splits(driver, 2)

    [alone] = claim(driver, limit=4, alone=(first.data_plane,))
    [unknown] = claim(driver, limit=4)

    assert alone.operation.operation_id == first.operation_id
    assert alone.layout is not None
    assert [segment.segment_id for segment in alone.layout.active] == [0]
    assert (unknown.operation.operation_id, unknown.layout) == (second.operation_id, None)
