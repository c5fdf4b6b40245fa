"""The default shedder: which brokers stand out, what fits, what would come back, and how long it waits."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.balancing.moves import Move, MoveReason, MoveRefusalReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.base import Shedding
from controller.bundles.domain.balancing.shedding.even import even
from controller.bundles.domain.balancing.shedding.even_levels import EvenLevels
from controller.bundles.domain.balancing.state import BalanceState
from controller.bundles.domain.cluster import Cluster, NamespacePolicy
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import NOW_MS, bundle_id

AT_ONCE = BalanceSettings(even_hits=1)


def ask(cluster: Cluster, settings: BalanceSettings = AT_ONCE, state: BalanceState | None = None) -> Shedding:
    return even(cluster, settings, state or BalanceState(), NOW_MS)


def after(cluster: Cluster, moves: tuple[Move, ...]) -> dict[str, float]:
    """Usage in percent after the moves."""
    usage = {name: report.resources.cpu.fraction * 100 for name, report in cluster.reporting}
    for move in moves:
        usage[move.source] -= move.load * 100
        usage[str(move.destination)] += move.load * 100
    return {name: round(points, 6) for name, points in usage.items()}


def test_a_hot_broker_gives_to_the_emptiest_until_it_is_within_its_goal() -> None:
    cluster = make.cluster({"a": 90, "b": 30, "c": 30}, {"a": [10] * 9, "b": [10] * 3, "c": [10] * 3})
    shed = ask(cluster)
    assert after(cluster, shed.moves) == {"a": 50, "b": 50, "c": 50}
    assert {move.reason for move in shed.moves} == {MoveReason.OVERLOADED}


def test_it_acts_on_the_second_cycle_in_a_row() -> None:
    cluster = make.cluster({"a": 90, "b": 10}, {"a": [5] * 9, "b": [5]})
    first = ask(cluster, BalanceSettings())
    assert first.moves == ()
    assert {refusal.reason for refusal in first.refusals} == {MoveRefusalReason.HIT_COUNT}
    assert ask(cluster, BalanceSettings(), first.state).moves != ()

    calm = make.cluster({"a": 52, "b": 48}, {"a": [5] * 9, "b": [5]})
    between = ask(calm, BalanceSettings(), first.state)
    assert (dict(between.state.hot_hits), dict(between.state.cold_hits)) == ({}, {})
    assert [refusal.reason for refusal in between.refusals] == [MoveRefusalReason.WITHIN_TARGET]


def test_a_cold_broker_is_filled_from_the_fullest_where_nobody_is_hot() -> None:
    usages = {"a": 50, "b": 50, "c": 50, "d": 50, "e": 50, "f": 50, "g": 50, "h": 50, "new": 0}
    cluster = make.cluster(usages, {name: [5] * 10 for name in "abcdefgh"})
    shed = ask(cluster)
    assert {move.reason for move in shed.moves} == {MoveReason.UNDERLOADED}
    assert {move.destination for move in shed.moves} == {"new"}
    # Evenly, up to 65 % of the mean of 44.4: at 25 the new one is still outside its band, at 30 it has enough.
    assert after(cluster, shed.moves) == {**dict.fromkeys("abcdef", 45), **dict.fromkeys("gh", 50), "new": 30}


def test_an_idle_cluster_is_left_alone_however_uneven() -> None:
    cluster = make.cluster({"a": 0.9, "b": 0.1}, {"a": [5] * 9, "b": [5]})
    assert ask(cluster).moves == ()


def test_the_heaviest_that_fits_goes_first_and_ties_go_by_name() -> None:
    # Mean 50, goal 55: 35 points are to go, and 30 fit where 45 do not.
    cluster = make.cluster({"a": 90, "b": 10}, {"a": [45, 10, 30, 5], "b": [10]})
    assert [move.bundle_id for move in ask(cluster).moves] == [bundle_id(2), bundle_id(3)]
    tied = make.cluster({"a": 90, "b": 10}, {"a": [30, 30, 30], "b": [10]})
    assert [move.bundle_id for move in ask(tied).moves] == [bundle_id(2)]


def test_a_bundle_heavier_than_needed_goes_only_where_the_fuller_of_the_two_gets_much_emptier() -> None:
    helps = make.cluster({"a": 90, "b": 10}, {"a": [45, 45], "b": [10]})
    assert after(helps, ask(helps).moves) == {"a": 45, "b": 55}

    would_come_back = make.cluster({"a": 90, "b": 10}, {"a": [85, 85], "b": [20]})
    small_gain = make.cluster({"a": 70, "b": 30}, {"a": [70, 0.1], "b": [30]})
    assert after(would_come_back, ask(would_come_back).moves) == {"a": 45, "b": 55}
    assert [move.load < 0.01 for move in ask(small_gain).moves] == [True]


def test_a_sole_bundle_stays_however_hot() -> None:
    cluster = make.cluster({"a": 90, "b": 10}, {"a": [90], "b": [10]})
    shed = ask(cluster)
    assert shed.moves == ()
    assert [(refusal.broker, refusal.reason) for refusal in shed.refusals] == [
        ("a", MoveRefusalReason.SOLE_BUNDLE)
    ]


def test_brokers_that_were_just_changed_wait_for_a_newer_report_the_others_go_on() -> None:
    usages = {"a": 90, "b": 10, "c": 90, "d": 10}
    cluster = make.cluster(usages, {"a": [5] * 9, "b": [5], "c": [5] * 9, "d": [5]})
    touched = BalanceState(unloaded_brokers={"a": NOW_MS - 119_999}, filled_brokers={"b": NOW_MS - 60_000})
    shed = ask(cluster, AT_ONCE, touched)
    assert {move.source for move in shed.moves} == {"c"}
    assert {move.destination for move in shed.moves} == {"d"}
    assert {refusal.broker for refusal in shed.refusals if refusal.reason is MoveRefusalReason.SETTLING} == {
        "a",
        "b",
    }

    settled = BalanceState(unloaded_brokers={"a": NOW_MS - 120_000}, filled_brokers={"b": NOW_MS - 120_000})
    assert {move.source for move in ask(cluster, AT_ONCE, settled).moves} == {"a", "c"}


def test_where_a_policy_forbids_the_emptiest_the_next_one_takes_it() -> None:
    cluster = make.cluster({"a": 90, "b": 5, "c": 25}, {"a": [5] * 9, "b": [], "c": [5]})
    bound = Cluster(cluster.brokers, cluster.bundles, {"t/ns": NamespacePolicy(frozenset({"a", "c"}))})
    assert {move.destination for move in ask(bound).moves} == {"c"}
    nobody = Cluster(cluster.brokers, cluster.bundles, {"t/ns": NamespacePolicy(frozenset({"a"}))})
    shed = ask(nobody)
    assert shed.moves == ()
    assert MoveRefusalReason.NOTHING_FITS in {refusal.reason for refusal in shed.refusals}


def test_brokers_of_unequal_size_are_brought_to_equal_usage() -> None:
    bundles = [make.bundle(i, "small", 8) for i in range(10)]
    brokers = (make.broker("small", 80, bundles, limit=100), make.broker("large", 0, bundles, limit=400))
    shed = ask(Cluster(brokers, tuple(bundles)))
    # 80 units over 500 are 16 % each: eight bundles of 8 % of the small one leave 16 %, and are 16 % of the large.
    assert len(shed.moves) == 8


def test_moves_stop_at_the_limit_and_say_so() -> None:
    cluster = make.cluster({"a": 90, "b": 10}, {"a": [1] * 90, "b": [10]})
    shed = ask(cluster, replace(AT_ONCE, max_moves_per_cycle=3))
    assert len(shed.moves) == 3
    assert shed.refusals[-1].reason is MoveRefusalReason.MOVE_LIMIT
    assert len(ask(cluster, replace(AT_ONCE, max_moves_per_cycle=0)).moves) > 3


def test_a_usage_beyond_its_limit_is_not_believed() -> None:
    """A card that reports a tenth of its speed shows 300 %; that does not make its broker hot."""
    bundles = [make.bundle(i, owner, 5) for i, owner in enumerate("aabb")]
    odd, plain = make.broker("a", 300, bundles), make.broker("b", 40, bundles)
    assert EvenLevels(
        Cluster((odd, plain), tuple(bundles)), AT_ONCE, BalanceState(), NOW_MS, frozenset()
    ).load == {"a": 0.0, "b": 0.4}


@given(
    st.lists(st.lists(st.floats(0.5, 40), min_size=1, max_size=6), min_size=2, max_size=5),
)
def test_no_move_makes_the_fullest_fuller_nor_would_be_undone(loads: list[list[float]]) -> None:
    names = [f"b{i}" for i in range(len(loads))]
    usages = {name: min(100.0, sum(rates)) for name, rates in zip(names, loads, strict=True)}
    cluster = make.cluster(usages, dict(zip(names, loads, strict=True)))
    shed = ask(cluster)
    usage = {name: report.resources.cpu.fraction for name, report in cluster.reporting}
    for move in shed.moves:
        before = usage[move.source]
        usage[move.source] -= move.load
        usage[str(move.destination)] += move.load
        assert usage[str(move.destination)] <= before + 1e-9
    # Without what the state remembers, the same bundles would not be sent back at once either.
    owners = {move.bundle_id: move.destination for move in shed.moves}
    moved = cluster.with_owners(owners)
    again = ask(make.cluster({n: u * 100 for n, u in usage.items()}, _by_owner(moved)))
    assert sum(m.load for m in again.moves) <= sum(m.load for m in shed.moves) + 1e-9


def _by_owner(cluster: Cluster) -> dict[str, list[float]]:
    return {
        name: [one.stats.byte_rate_in / 2**20 for one in cluster.bundles_of(name) if one.stats]
        for name, _ in cluster.reporting
    }
