"""Balancing around shedder and placement: destinations, refusals, limits, the state, the stored text, and moves that wait or run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from controller.bundles.domain.balancing.balance import (
    SHEDDERS,
    BalanceInputs,
    PendingMove,
    _limited,
    as_if_made,
    balance,
    observed,
    place,
)
from controller.bundles.domain.balancing.moves import BalanceState, Move, MoveReason, MoveRefusalReason
from controller.bundles.domain.balancing.placement import Occupancy
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.cluster import Cluster, NamespacePolicy
from controller.bundles.domain.cycle_text import canonical_text, read_balance_inputs, write_balance_inputs
from controller.domain.errors import InvalidPolicy
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import NOW_MS, bundle_id

HOT = make.cluster({"a": 95, "b": 20, "c": 30}, {"a": [30, 5, 5], "b": [4], "c": [6]})
OVERLOAD = BalanceSettings(shedder="overload")
EXCHANGE = make.cluster({"a": 90, "b": 30}, {"a": [499, 500, 1], "b": [205, 10, 210]})
TRANSFER = BalanceSettings(shedder="transfer", transfer_hits=0)


def ask(cluster: Cluster, settings: BalanceSettings = OVERLOAD, **state: object) -> BalanceInputs:
    return BalanceInputs(
        cluster=cluster,
        settings=settings,
        state=BalanceState(**state),  # type: ignore[arg-type]
        now_ms=NOW_MS,
    )


def test_the_placement_completes_what_the_shedder_left_open() -> None:
    (move,) = balance(ask(HOT)).moves
    assert (move.bundle_id, move.source, move.destination) == (bundle_id(0), "a", "b")


def test_a_placement_that_chooses_the_owner_moves_nothing() -> None:
    """apache/pulsar#20822: a bundle was moved to its own broker again and again."""
    settings = replace(OVERLOAD, placement="round_robin", spread_namespaces=False, overloaded_usage=0.95)
    verdict = balance(ask(HOT, settings))
    assert verdict.moves == ()
    assert [
        (h.broker, h.bundle_id) for h in verdict.refusals if h.reason is MoveRefusalReason.SAME_BROKER
    ] == [("a", bundle_id(0))]


def test_a_choice_above_the_threshold_is_made_again_among_all_that_the_policy_allows() -> None:
    cluster = make.cluster({"a": 90, "b": 10}, {"b": [1]})
    settings = BalanceSettings(placement="round_robin")
    spare = make.bundle(50, None, 1)
    cluster = Cluster(cluster.brokers, (*cluster.bundles, spare))
    choice = place(spare, Occupancy(cluster, settings), settings, BalanceState())
    # Even spread leaves a alone; it is too full; the second turn is b's.
    assert (choice.broker, choice.state.round_robin) == ("b", 2)


def test_a_bundle_that_may_be_nowhere_else_stays_with_the_reason() -> None:
    bound = Cluster(HOT.brokers, HOT.bundles, {"t/ns": NamespacePolicy(frozenset({"a"}))})
    assert MoveRefusalReason.NO_OTHER_HOME in {refusal.reason for refusal in balance(ask(bound)).refusals}
    free = Cluster(HOT.brokers, HOT.bundles, {"t/ns": NamespacePolicy(frozenset({"a", "c"}))})
    assert [move.destination for move in balance(ask(free)).moves] == ["c"]
    left_alone = balance(ask(free, replace(OVERLOAD, shed_bundles_with_policies=False)))
    assert left_alone.moves == ()
    assert MoveRefusalReason.EXCLUDED in {refusal.reason for refusal in left_alone.refusals}


def test_a_destination_that_a_policy_forbids_is_replaced_by_the_placement() -> None:
    settings = BalanceSettings(shedder="avg", avg_high_hits=1, unload_fraction=0.5, min_unload_msg_rate=0)
    pair = make.cluster({"a": 90, "b": 10, "c": 50}, {"a": [9, 9, 9], "b": [], "c": [9]})
    assert {move.destination for move in balance(ask(pair, settings)).moves} == {"b"}
    bound = Cluster(pair.brokers, pair.bundles, {"t/ns": NamespacePolicy(frozenset({"a", "c"}))})
    assert {move.destination for move in balance(ask(bound, settings)).moves} == {"c"}


def test_two_bundles_shed_together_do_not_both_go_to_the_same_emptiest_broker() -> None:
    cluster = make.cluster({"a": 100, "b": 20, "c": 20}, {"a": [9] * 7, "b": [4], "c": [5]})
    destinations = [move.destination for move in balance(ask(cluster)).moves]
    assert destinations == ["b", "c"]


def test_moves_beyond_the_limit_wait_for_the_next_cycle() -> None:
    cluster = make.cluster({"a": 100, "b": 20, "c": 20}, {"a": [9] * 7, "b": [4], "c": [5]})
    verdict = balance(ask(cluster, replace(OVERLOAD, max_moves_per_cycle=1)))
    (limit,) = (refusal for refusal in verdict.refusals if refusal.reason is MoveRefusalReason.MOVE_LIMIT)
    assert (len(verdict.moves), limit.value, limit.needed) == (1, 2, 1)


@pytest.mark.parametrize(("limit", "made"), [(0, 4), (1, 1), (2, 1), (3, 1), (4, 4)])
def test_an_exchange_is_within_the_limit_or_waits_whole(limit: int, made: int) -> None:
    settings = replace(TRANSFER, max_moves_per_cycle=limit)
    verdict = balance(ask(EXCHANGE, settings))

    # One bundle goes alone; two return for the next, in exchange for which they make room.
    assert [move.bundle_id for move in verdict.moves] == [bundle_id(at) for at in (2, 4, 3, 0)[:made]]
    said = [(r.value, r.needed) for r in verdict.refusals if r.reason is MoveRefusalReason.MOVE_LIMIT]
    assert said == ([] if made == 4 else [(4, limit)])


def test_a_move_takes_the_place_of_an_exchange_that_does_not_fit() -> None:
    """Otherwise an exchange that is larger than the limit would end all moves for good."""
    alone, back, forth, last = (
        Move(name, "a", "b", 1.0, "byte_rate", reason)
        for name, reason in (
            ("alone", MoveReason.OVERLOADED),
            ("back", MoveReason.SWAP),
            ("forth", MoveReason.OVERLOADED),
            ("last", MoveReason.OVERLOADED),
        )
    )

    kept, [refusal] = _limited([alone, back, forth, last], replace(TRANSFER, max_moves_per_cycle=2))

    assert kept == [alone, last]
    assert (refusal.value, refusal.needed) == (4, 2)


def test_an_exchange_of_which_a_move_has_no_place_is_dropped_whole() -> None:
    """The topics of the bundle that goes are too many for b, and the placement chooses its owner."""
    topics = {bundle_id(2): 5, bundle_id(0): 40, bundle_id(5): 8}
    bundles = tuple(
        replace(one, stats=one.stats and replace(one.stats, topic_count=topics.get(one.bundle_id, 1)))
        for one in EXCHANGE.bundles
    )
    settings = replace(
        TRANSFER,
        max_topics_per_broker=50,
        placement="round_robin",
        spread_namespaces=False,
        overloaded_usage=0.95,
    )
    verdict = balance(ask(replace(EXCHANGE, bundles=bundles), settings))

    assert [move.bundle_id for move in verdict.moves] == [bundle_id(2)]
    assert [(one.reason, one.bundle_id) for one in verdict.refusals] == [
        (MoveRefusalReason.SAME_BROKER, bundle_id(0))
    ]


def test_invalid_settings_are_refused_before_anything_is_decided() -> None:
    with pytest.raises(InvalidPolicy, match="shedder = none must be one of even"):
        balance(ask(HOT, BalanceSettings(shedder="none")))


def test_a_report_is_averaged_once_however_often_it_is_seen() -> None:
    state = observed(HOT, OVERLOAD, BalanceState(), NOW_MS)
    assert state.broker_averages["a"].usage == 0.95
    assert observed(HOT, OVERLOAD, state, NOW_MS + 60_000) == state

    newer = Cluster(tuple(make.broker(name, 0, age_ms=-1) for name in "abc"))
    assert observed(newer, OVERLOAD, state, NOW_MS).broker_averages["a"].usage == pytest.approx(0.855)


def test_only_moves_that_succeeded_are_stamped_and_their_plans_spent() -> None:
    verdict = balance(ask(HOT, planned={bundle_id(0): "b", bundle_id(1): "c"}))
    assert dict(verdict.state.unloaded_bundles) == {}

    done = verdict.state.after(verdict.moves, NOW_MS)
    assert dict(done.unloaded_bundles) == {bundle_id(0): NOW_MS}
    assert (dict(done.unloaded_brokers), dict(done.filled_brokers)) == ({"a": NOW_MS}, {"b": NOW_MS})
    assert dict(done.planned) == {bundle_id(1): "c"}
    assert verdict.state.after((), NOW_MS) == verdict.state


def test_unloads_are_forgotten_with_their_grace_and_brokers_with_their_departure() -> None:
    state = BalanceState(
        unloaded_bundles={bundle_id(1): NOW_MS - 1_800_001, bundle_id(2): NOW_MS - 1_800_000},
        usage_averages={"a": 0.1, "gone": 0.2},
        planned={bundle_id(0): "gone", bundle_id(1): "a"},
    )
    kept = observed(HOT, OVERLOAD, state, NOW_MS)
    assert dict(kept.unloaded_bundles) == {bundle_id(2): NOW_MS - 1_800_000}
    assert (dict(kept.usage_averages), dict(kept.planned)) == ({"a": 0.1}, {bundle_id(1): "a"})


def test_the_text_is_compact_sorted_and_writes_whole_numbers_as_integers() -> None:
    text = canonical_text(write_balance_inputs(ask(HOT)))
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert '"cpu":[95,100]' in text
    assert read_balance_inputs(json.loads(text)) == ask(HOT)


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
