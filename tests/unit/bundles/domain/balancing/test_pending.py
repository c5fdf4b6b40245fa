"""Moves that wait or run: a cycle counts them as made, in owners and in what brokers report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.bundles.domain.balancing.balance import BalanceInputs, balance
from controller.bundles.domain.balancing.moves import MoveRefusalReason
from controller.bundles.domain.balancing.pending import PendingMove, as_if_made
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.registry import SHEDDERS
from controller.bundles.domain.cluster import Cluster
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import NOW_MS, bundle_id

UNEVEN = make.cluster({"a": 80, "b": 20}, {"a": [10] * 8, "b": [10] * 2})


def test_a_pending_move_takes_its_share_of_every_resource_along() -> None:
    made = as_if_made(UNEVEN, [PendingMove(bundle_id(0), "a", "b"), PendingMove(bundle_id(1), "a", "b")])

    usage = {name: round(report.resources.cpu.fraction, 9) for name, report in made.reporting}
    assert usage == {"a": 0.6, "b": 0.4}
    assert [len(made.bundles_of(name)) for name in "ab"] == [6, 4]
    rates = {name: round(report.stats.byte_rate / make.MIB) for name, report in made.reporting}
    assert rates == {"a": 120, "b": 80}


def test_a_move_that_is_seen_made_or_of_a_bundle_that_is_gone_changes_nothing() -> None:
    seen, gone = PendingMove(bundle_id(9), "a", "b"), PendingMove(bundle_id(77), "a", "b")

    assert as_if_made(UNEVEN, [seen, gone]) == UNEVEN


@pytest.mark.parametrize("shedder", ["even", "overload", "threshold", "transfer"])
def test_what_one_cycle_proposed_the_next_does_not_propose_anew(shedder: str) -> None:
    settings = BalanceSettings(
        shedder=shedder,
        placement="least_usage",
        even_hits=1,
        threshold_min_byte_rate=0,
        overloaded_usage=0.7,
        transfer_hits=0,
    )
    inputs = BalanceInputs(cluster=UNEVEN, settings=settings, now_ms=NOW_MS)
    first = balance(inputs)
    pending = tuple(PendingMove(m.bundle_id, m.source, str(m.destination)) for m in first.moves)

    # As if the next report had come, and said the same.
    again = balance(replace(inputs, pending=pending, state=replace(first.state, broker_averages={})))

    assert pending
    assert again.moves == ()
    if shedder in ("threshold", "transfer"):
        waiting = {one.broker: one.value for one in again.refusals if one.reason is MoveRefusalReason.WAITING}
        assert waiting["a"] == sum(one.source == "a" for one in pending)
    assert again.state.unloaded_bundles == first.state.unloaded_bundles


@pytest.mark.parametrize("name", SHEDDERS)
def test_no_shedder_takes_a_bundle_that_has_an_act_under_way(name: str) -> None:
    settings = BalanceSettings(
        even_hits=1,
        threshold_min_byte_rate=0,
        overloaded_usage=0.7,
        transfer_hits=0,
        avg_low_hits=1,
        avg_high_hits=1,
        min_unload_msg_rate=0,
        min_unload_byte_rate=0,
    )
    state, shed = make.observed(UNEVEN), SHEDDERS[name].shed
    everything = replace(UNEVEN, resting=frozenset(UNEVEN.bundle_by_id))

    assert shed(UNEVEN, settings, state, NOW_MS).moves
    assert shed(everything, settings, state, NOW_MS).moves == ()


def test_a_broker_without_a_report_keeps_none() -> None:
    cluster = Cluster((*UNEVEN.brokers[:1], replace(UNEVEN.brokers[1], report=None)), UNEVEN.bundles)
    made = as_if_made(cluster, [PendingMove(bundle_id(0), "a", "b")])

    assert [name for name, _ in made.reporting] == ["a"]
