"""Whoever lost a claim records nothing: runner, term and expiry are each demanded, by every statement that writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.domain.errors import FencedOut
from controller.domain.operation import Operation, OperationState
from controller.domain.operation_steps import Step
from controller.domain.reshape import plan_split
from controller.store.journal import claims
from controller.store.journal.steps import StepRecord
from tests.support.store_driver import RUNNER, StoreDriver, request

_S = OperationState
ANNOUNCE = ((Step.CREATE_CHILDREN, _S.PREPARED), (Step.SET_FENCING, _S.FENCING))
FENCE_AND_COMMIT = ((Step.TERMINATE_PARENTS, _S.FENCED), (Step.COMMIT, _S.COMMITTED))


def split(driver: StoreDriver, until: OperationState, *, deadline_seconds: float = 600.0) -> Operation:
    """A claimed split that got that far."""
    topic_id = driver.create().topic_id
    wanted = request(deadline_seconds=deadline_seconds)
    intended = driver.intend_reshape(topic_id, lambda layout: plan_split(layout, 0), wanted).operation
    return driver.run(intended, until=until)


def announce(driver: StoreDriver) -> StepRecord:
    return StepRecord(split(driver, _S.INTENDED), ANNOUNCE, subscription_version=0)


def commit(driver: StoreDriver) -> StepRecord:
    return StepRecord(split(driver, _S.FENCING), FENCE_AND_COMMIT)


def finish(driver: StoreDriver) -> StepRecord:
    return StepRecord(split(driver, _S.COMMITTED), ((Step.FINISH, _S.DONE),))


def finish_abort(driver: StoreDriver) -> StepRecord:
    given_up = split(driver, _S.ABORTING, deadline_seconds=0.0)
    return StepRecord(given_up, ((Step.FINISH_ABORT, _S.ABORTED),))


def create(driver: StoreDriver) -> StepRecord:
    prepared = driver.run(driver.intend_create("topic://t/n/a").operation, until=_S.PREPARED)
    return StepRecord(prepared, ((Step.COMMIT, _S.COMMITTED),))


RECORDS: dict[str, Callable[[StoreDriver], StepRecord]] = {
    "announce": announce,
    "commit": commit,
    "finish": finish,
    "finish_abort": finish_abort,
    "create": create,
}


def expire(driver: StoreDriver) -> None:
    driver.sql(
        "UPDATE cleave.operation SET claim_expires_at = clock_timestamp() - interval '1 hour' WHERE claimed_by IS NOT NULL"
    )


def everything(driver: StoreDriver) -> list[list[tuple[object, ...]]]:
    tables = ("operation", "operation_step", "operation_parent", "topic", "segment", "deletion_entry")
    return [driver.sql(f"SELECT * FROM cleave.{table} ORDER BY 1, 2") for table in tables]


@pytest.mark.parametrize("act", RECORDS)
@pytest.mark.parametrize("lost_by", ["expiry", "takeover", "name"])
def test_whoever_lost_the_claim_records_nothing(driver: StoreDriver, act: str, lost_by: str) -> None:
    """By expiry alone; by a takeover under the very name, so by the term alone; by another name in the same term."""
    record = RECORDS[act](driver)
    if lost_by != "name":
        expire(driver)
    if lost_by == "takeover":
        driver.claim(record.operation, RUNNER)
    before = everything(driver)

    with pytest.raises(FencedOut, match=f"claim term {record.operation.claim_term}"):
        driver.record(record, "another" if lost_by == "name" else RUNNER)

    assert everything(driver) == before


@pytest.mark.parametrize("act", RECORDS)
def test_whoever_holds_the_claim_records(driver: StoreDriver, act: str) -> None:
    """The same records, so that it was the claim that was missing above."""
    record = RECORDS[act](driver)

    assert driver.record(record).state is record.leads_to


def test_a_claim_is_renewed_given_back_and_failed_under_its_holders_name_only(driver: StoreDriver) -> None:
    held = split(driver, _S.INTENDED)
    before = everything(driver)

    assert driver.do(claims.renew, [held], "another", 60.0) == set()
    driver.do(claims.release, [held], "another")
    with pytest.raises(FencedOut):
        driver.do(claims.record_failure, held, "another", "x", 0.0)

    assert everything(driver) == before
