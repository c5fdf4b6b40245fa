"""Pulsar's transfer shedder on chosen figures: when it acts, what it exchanges, what it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.bundles.domain.balancing.moves import (
    BalanceState,
    BrokerReading,
    MoveReason,
    MoveRefusalReason,
)
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.shedder import Shedding
from controller.bundles.domain.balancing.shedding.transfer import Exchange, transfer
from controller.bundles.domain.cluster import Broker, Cluster, NamespacePolicy
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import NOW_MS, bundle_id

AT_ONCE = BalanceSettings(transfer_hits=0)
UNEVEN = make.cluster({"a": 90, "b": 10}, {"a": [10, 20, 60], "b": [5, 5]})


def ask(cluster: Cluster, settings: BalanceSettings = AT_ONCE, **state: object) -> Shedding:
    return transfer(cluster, settings, make.observed(cluster, **state), NOW_MS)


def only_reason(shed: Shedding) -> MoveRefusalReason:
    assert shed.moves == ()
    (refusal,) = shed.refusals
    return refusal.reason


def test_it_acts_on_the_fourth_cycle_in_a_row_and_counts_anew_afterwards() -> None:
    state, moved = make.observed(UNEVEN), []
    for _ in range(5):
        shed = transfer(UNEVEN, BalanceSettings(), state, NOW_MS)
        moved.append(len(shed.moves))
        state = shed.state
    assert moved == [0, 0, 0, 2, 0]
    assert state.condition_hits == 1


def test_half_the_difference_goes_lightest_first() -> None:
    # Half of 80 points of 90: 40/90 of 180 MiB/s is 80, in both directions; 20 and 40 fit, 120 would not.
    shed = ask(UNEVEN)
    assert [(m.bundle_id, m.source, m.destination) for m in shed.moves] == [
        (bundle_id(0), "a", "b"),
        (bundle_id(1), "a", "b"),
    ]
    assert {move.reason for move in shed.moves} == {MoveReason.OVERLOADED}


def test_an_even_cluster_is_left_alone_and_the_count_begins_anew() -> None:
    even = make.cluster({"a": 50, "b": 45}, {"a": [5, 5], "b": [5, 5]})
    shed = ask(even, condition_hits=3)
    assert only_reason(shed) is MoveRefusalReason.WITHIN_TARGET
    assert shed.state.condition_hits == 0


def test_a_new_broker_is_filled_although_the_deviation_is_within_the_target() -> None:
    cluster = make.cluster(dict.fromkeys("abcde", 50) | {"f": 0}, {name: [5, 5, 5] for name in "abcde"})
    shed = ask(cluster)
    assert {(move.destination, move.reason) for move in shed.moves} == {("f", MoveReason.UNDERLOADED)}


@pytest.mark.parametrize(
    ("usages", "settings", "says"),
    [
        ({"a": 90, "b": 10}, AT_ONCE, "std of usage of all brokers is 0.4, above 0.25"),
        (
            dict.fromkeys("abcde", 50) | {"f": 0},
            AT_ONCE,
            "average usage of f is 0, below 0.05208",
        ),
        (
            {"a": 90, "b": 60, "c": 60},
            replace(AT_ONCE, transfer_target_std=0.15, overloaded_usage=0.7),
            "average usage of a is 0.9, above 0.85",
        ),
    ],
)
def test_a_move_says_which_figure_is_beyond_which_bound(
    usages: dict[str, float], settings: BalanceSettings, says: str
) -> None:
    cluster = make.cluster(usages, {name: [2] * 8 for name in usages if name != "f"})

    assert {move.because and move.because.sentence for move in ask(cluster, settings).moves} == {says}


def test_a_broker_that_carries_little_is_filled_whatever_its_usage() -> None:
    """Its processor is as busy as the others', and its byte rate is far below that of the fullest."""
    cluster = make.cluster(dict.fromkeys("abc", 50), {"a": [1] * 30, "b": [1] * 30, "c": []})
    state = make.observed(cluster)
    quiet = replace(state.broker_averages["c"], byte_rate=1.0, usage=0.4)
    shed = transfer(
        cluster, AT_ONCE, replace(state, broker_averages={**state.broker_averages, "c": quiet}), NOW_MS
    )

    assert shed.moves
    for move in shed.moves:
        assert move.because is not None
        assert (move.reason, move.because.broker) == (MoveReason.UNDERLOADED, "c")
        assert move.because.metric == "average byte_rate"
        assert move.because.value < move.because.bound


def test_a_heavy_bundle_goes_in_exchange_for_a_light_one() -> None:
    """40 points are to move, the bundle is worth 45: it goes, and 5 come back, which makes 50 and 50."""
    cluster = make.cluster({"a": 90, "b": 10}, {"a": [45, 45], "b": [5, 5]})
    assert [(m.bundle_id, m.source, m.destination, m.reason) for m in ask(cluster).moves] == [
        (bundle_id(2), "b", "a", MoveReason.SWAP),
        (bundle_id(0), "a", "b", MoveReason.OVERLOADED),
    ]
    # Without anything that may come back it stays.
    sole = make.cluster({"a": 90, "b": 10}, {"a": [45, 45], "b": [10]})
    assert [refusal.reason for refusal in ask(sole).refusals] == [MoveRefusalReason.NOTHING_FITS]
    assert ask(sole).moves == ()


def test_of_what_may_come_back_one_stays_whichever_it_is() -> None:
    """The light one gains nothing, the heavy one does: the light one stays, though it is tried first."""
    cluster = make.cluster({"a": 90, "b": 20}, {"a": [70, 30], "b": [1, 43]})
    shed = ask(cluster, unloaded_bundles={bundle_id(1): NOW_MS})
    assert [(m.bundle_id, m.source) for m in shed.moves] == [(bundle_id(3), "b"), (bundle_id(0), "a")]


@pytest.mark.parametrize(("strict", "relieved"), [(False, 40 / 90), (True, 45 / 90)])
def test_what_comes_back_counts_but_for_strict_pulsar(strict: bool, relieved: float) -> None:
    """Pulsar adds it only while debug logging is on."""
    cluster = make.cluster({"a": 90, "b": 10}, {"a": [45, 45], "b": [5, 5]})
    settings = replace(AT_ONCE, strict_pulsar=strict)
    because = BrokerReading(None, "std of usage", 0.4, 0.25)
    exchange = Exchange("a", "b", MoveReason.OVERLOADED, because, cluster.report_of, settings, spare=1)
    assert exchange.run(cluster.bundles_of("a"), iter(cluster.bundles_of("b")[:1]), 40 / 90, 2) is None
    assert exchange.net_share == pytest.approx(relieved)


def test_the_whole_cycle_waits_for_a_broker_that_just_shed() -> None:
    assert only_reason(ask(UNEVEN, unloaded_brokers={"a": NOW_MS - 179_999})) is MoveRefusalReason.SETTLING
    assert ask(UNEVEN, unloaded_brokers={"a": NOW_MS - 180_000}).moves != ()


def test_an_available_broker_without_a_report_stops_the_cycle() -> None:
    cluster = Cluster((*UNEVEN.brokers, Broker("c")), UNEVEN.bundles)
    shed = ask(cluster)
    assert [(refusal.broker, refusal.reason) for refusal in shed.refusals] == [
        ("c", MoveRefusalReason.NO_REPORT)
    ]
    assert shed.moves == ()


def test_a_broker_whose_report_is_old_is_neither_counted_nor_picked() -> None:
    old = make.broker("0", 0, age_ms=1_800_001)
    cluster = Cluster((*UNEVEN.brokers, old), UNEVEN.bundles)
    shed = ask(cluster)
    assert shed.refusals[0].reason is MoveRefusalReason.STALE_REPORT
    assert {move.destination for move in shed.moves} == {"b"}


def test_without_transfer_the_destination_is_left_open() -> None:
    shed = ask(UNEVEN, replace(AT_ONCE, transfer_enabled=False))
    assert [move.destination for move in shed.moves] == [None, None]


def test_bundles_with_policies_stay_where_they_are_not_to_be_shed() -> None:
    bound = Cluster(UNEVEN.brokers, UNEVEN.bundles, {"t/ns": NamespacePolicy(frozenset({"a", "b"}))})
    assert len(ask(bound).moves) == 2
    shed = ask(bound, replace(AT_ONCE, shed_bundles_with_policies=False))
    assert only_reason(shed) is MoveRefusalReason.SOLE_BUNDLE


def test_a_broker_with_one_bundle_keeps_it() -> None:
    shed = ask(make.cluster({"a": 90, "b": 10}, {"a": [60], "b": [5]}))

    assert only_reason(shed) is MoveRefusalReason.SOLE_BUNDLE


@pytest.mark.parametrize(
    ("namespace", "rate", "excluded"),
    [("pulsar/system", 40, ""), ("t/spare", 40, "t/spare"), ("t/ns", 0, "")],
)
def test_of_two_bundles_one_stays_whatever_else_is_there_that_is_not_reported(
    namespace: str, rate: float, excluded: str
) -> None:
    """Brokers list neither Pulsar's own bundles nor excluded nor idle ones, and one of the list stays."""
    other = make.bundle(9, "a", rate, namespace=namespace)
    light, heavy = make.bundle(0, "a", 10), make.bundle(1, "a", 20)
    brokers = (make.broker("a", 90, [light, heavy, other]), make.broker("b", 10, []))
    shed = ask(Cluster(brokers, (light, heavy, other)), replace(AT_ONCE, excluded_namespaces=excluded))

    assert [move.bundle_id for move in shed.moves] == [light.bundle_id]


def test_at_most_so_many_sources_a_cycle() -> None:
    usages = {**dict.fromkeys("abcde", 95), **dict.fromkeys("vwxyz", 5)}
    cluster = make.cluster(usages, {name: [5] * 6 for name in "abcde"})
    assert {move.source for move in ask(cluster).moves} == {"c", "d", "e"}
    assert len({move.source for move in ask(cluster, replace(AT_ONCE, transfer_max_sources=1)).moves}) == 1


def test_a_state_that_never_saw_a_broker_has_no_load_of_it() -> None:
    shed = transfer(UNEVEN, AT_ONCE, BalanceState(), NOW_MS)
    assert {refusal.reason for refusal in shed.refusals} == {MoveRefusalReason.NO_REPORT}
