"""Moves that wait or run: a cycle counts them as made, in owners and in what brokers report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.bundles.domain.balancing.balance import BalanceInputs, balance
from controller.bundles.domain.balancing.moves import MoveReason, MoveRefusalReason
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


@pytest.mark.parametrize(("pending", "waiting"), [(bundle_id(2), "a"), (bundle_id(4), "b")])
def test_an_exchange_with_a_broker_that_has_pending_moves_is_dropped_whole(
    pending: str, waiting: str
) -> None:
    """A bundle of a goes in exchange for one or two of b, and the returns alone would fill the fuller broker."""
    cluster = make.cluster({"a": 90, "b": 30}, {"a": [499, 500, 1], "b": [205, 10, 210]})
    settings = BalanceSettings(shedder="transfer", transfer_hits=0)
    free = balance(BalanceInputs(cluster=cluster, settings=settings, now_ms=NOW_MS))
    assert [(move.bundle_id, move.source) for move in free.moves] == [
        (bundle_id(2), "a"),
        (bundle_id(4), "b"),
        (bundle_id(3), "b"),
        (bundle_id(0), "a"),
    ]

    other = {"a": "b", "b": "a"}[waiting]
    move = PendingMove(pending, waiting, other)
    verdict = balance(
        BalanceInputs(cluster=cluster, settings=settings, now_ms=NOW_MS, pending=(move,)),
    )

    assert MoveReason.SWAP not in {move.reason for move in verdict.moves}
    assert [(one.reason, one.broker) for one in verdict.refusals] == [(MoveRefusalReason.WAITING, waiting)]


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
    state, shed = make.observed(UNEVEN), SHEDDERS[name]
    everything = replace(UNEVEN, resting=frozenset(UNEVEN.bundle_by_id))

    assert shed(UNEVEN, settings, state, NOW_MS).moves
    assert shed(everything, settings, state, NOW_MS).moves == ()


def test_a_broker_without_a_report_keeps_none() -> None:
    cluster = Cluster((*UNEVEN.brokers[:1], replace(UNEVEN.brokers[1], report=None)), UNEVEN.bundles)
    made = as_if_made(cluster, [PendingMove(bundle_id(0), "a", "b")])

    assert [name for name, _ in made.reporting] == ["a"]
