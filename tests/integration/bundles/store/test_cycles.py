"""Cycles of the balancer: texts are kept to the byte, states follow each other, a request has one cycle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.cycles import StateRow, StoredCycle
from controller.bundles.store.proposals import NewProposal, ProposalKind, ProposalState
from controller.domain.errors import Conflict, InvalidInput, InvariantViolated, LostRace, NotFound
from tests.support.bundle_reports import CLUSTER, HALF, LAST, NAMESPACE, NOW
from tests.support.store_driver import StoreDriver

INPUTS = '{"brokers":{"b":0.1},"now":1,"word":"ü\\u2028"}'
REFUSAL = {"rule": "transfer", "reason": "hit-count", "value": 1.0, "needed": 3.0}


def cycle(key: str = "run-1", proposals: tuple[NewProposal, ...] = (), **more: str) -> dict[str, Any]:
    return {
        "request_key": key,
        "decided_at": NOW,
        "decided_by": "balancer",
        "code_version": "1",
        "inputs": INPUTS,
        "outcome": '{"moves":[]}',
        "refusals": [REFUSAL],
        "proposals": proposals,
        **more,
    }


def record(driver: StoreDriver, new: dict[str, Any], seen: int = 0, state: str = '{"hits":1}') -> int:
    return driver.do(bundle_cycles.record, CLUSTER, **new, next_state=state, seen_state_version=seen)


def test_a_cycle_is_read_as_it_was_written(driver: StoreDriver) -> None:
    proposal = NewProposal(
        bundle=NamespaceBundle(NAMESPACE, HALF, LAST),
        kind=ProposalKind.UNLOAD,
        reason="overloaded",
        broker="b",
        detail={"load": 0.1},
    )
    cycle_id = record(driver, cycle(proposals=(proposal,)))

    found = driver.do(bundle_cycles.get_cycle, cycle_id)
    assert found == StoredCycle(cycle_id, CLUSTER, "1", INPUTS, '{"moves":[]}')
    written = driver.sql("SELECT request_key, decided_at, refusals FROM cleave.bundle_decision")
    assert written == [("run-1", NOW, [REFUSAL])]
    [row] = driver.do(bundle_proposals.list_proposals, CLUSTER, cycle_id=cycle_id)
    assert (row.bundle, row.kind, row.state) == (
        proposal.bundle,
        ProposalKind.UNLOAD,
        ProposalState.PROPOSED,
    )
    assert (row.broker, row.destination, row.cut_points, row.detail) == ("b", None, (), {"load": 0.1})


def cycle_ids(driver: StoreDriver) -> list[int]:
    """Of all cycles, newest first."""
    rows = driver.sql("SELECT cycle_id FROM cleave.bundle_decision ORDER BY cycle_id DESC")
    return [cycle_id for (cycle_id,) in rows]


def test_the_state_goes_from_cycle_to_cycle(driver: StoreDriver) -> None:
    assert driver.do(bundle_cycles.get_state, CLUSTER) == StateRow(CLUSTER, "{}", None, 0)
    first = record(driver, cycle())
    assert driver.do(bundle_cycles.get_state, CLUSTER) == StateRow(CLUSTER, '{"hits":1}', first, 1)

    second = record(driver, cycle("run-2"), seen=1, state='{"hits":2}')

    assert driver.do(bundle_cycles.get_state, CLUSTER) == StateRow(CLUSTER, '{"hits":2}', second, 2)
    assert cycle_ids(driver) == [second, first]


@pytest.mark.parametrize("seen", [0, 2])
def test_a_cycle_that_began_with_another_state_is_not_written(driver: StoreDriver, seen: int) -> None:
    record(driver, cycle())

    with pytest.raises(LostRace, match="begin again"):
        record(driver, cycle("run-2"), seen=seen)

    assert len(cycle_ids(driver)) == 1


def test_the_first_cycle_has_seen_no_state(driver: StoreDriver) -> None:
    with pytest.raises(LostRace, match="begin again"):
        record(driver, cycle(), seen=1)


def test_a_request_is_one_cycle(driver: StoreDriver) -> None:
    cycle_id = record(driver, cycle())
    assert driver.do(bundle_cycles.find_request, CLUSTER, "run-1") == cycle_id
    assert driver.do(bundle_cycles.find_request, CLUSTER, "run-2") is None
    assert driver.do(bundle_cycles.find_request, "other", "run-1") is None

    with pytest.raises(Conflict, match="gets the cycle of the first request"):
        record(driver, cycle(), seen=1)


def test_a_cycle_is_history(driver: StoreDriver) -> None:
    record(driver, cycle())

    with pytest.raises(InvariantViolated, match="never change"):
        driver.sql("UPDATE cleave.bundle_decision SET inputs = '{}'")


@pytest.mark.parametrize("texts", [{"inputs": "[]"}, {"outcome": "1"}, {"inputs": "{"}])
def test_texts_that_are_no_objects_are_refused(driver: StoreDriver, texts: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        record(driver, cycle(**texts))


def test_an_unknown_cycle_is_not_found(driver: StoreDriver) -> None:
    with pytest.raises(NotFound, match="no cycle 404"):
        driver.do(bundle_cycles.get_cycle, 404)


def test_old_cycles_expire_unless_a_proposal_of_theirs_is_open(driver: StoreDriver) -> None:
    open_one = NewProposal(bundle=NamespaceBundle(NAMESPACE, 0, HALF), kind=ProposalKind.UNLOAD, reason="r")
    record(driver, cycle())
    kept = record(driver, cycle("run-2", (open_one,)), seen=1)

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert driver.do(bundle_cycles.expire, tomorrow) == 0, "younger than 30 days"
    driver.sql("ALTER TABLE cleave.bundle_decision DISABLE TRIGGER USER")
    driver.sql("UPDATE cleave.bundle_decision SET recorded_at = recorded_at - interval '31 days'")
    assert driver.do(bundle_cycles.expire, tomorrow) == 1

    assert cycle_ids(driver) == [kept]
    assert driver.do(bundle_cycles.expire, NOW) == 0
