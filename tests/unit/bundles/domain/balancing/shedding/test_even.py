"""The default shedder: which brokers stand out, what fits, what would come back, and how long it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.bundles.domain.balancing.moves import BalanceState, Move, MoveReason, MoveRefusalReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.even import EvenLevels, even
from controller.bundles.domain.balancing.shedding.shedder import Shedding
from controller.bundles.domain.cluster import Broker, Bundle, Cluster, NamespacePolicy
from controller.bundles.domain.load import ResourceUsage
from tests.support.drawn import cases
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
    assert {move.because and move.because.sentence for move in shed.moves} == {
        "usage of a is 0.9, above 0.575"
    }


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
    assert {move.because and move.because.sentence for move in shed.moves} == {
        "usage of new is 0, below 0.2667"
    }
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


@settings(max_examples=cases(100, 1_000))
@given(make.clusters())
def test_the_limit_is_a_reason_only_if_it_keeps_a_move_back(cluster: Cluster) -> None:
    wanted = ask(cluster, replace(AT_ONCE, max_moves_per_cycle=0))

    assert MoveRefusalReason.MOVE_LIMIT not in {refusal.reason for refusal in wanted.refusals}
    for limit in range(1, len(wanted.moves) + 1):
        shed = ask(cluster, replace(AT_ONCE, max_moves_per_cycle=limit))
        said = [(r.value, r.needed) for r in shed.refusals if r.reason is MoveRefusalReason.MOVE_LIMIT]
        assert shed.moves == wanted.moves[:limit]
        assert said == ([(limit + 1, limit)] if limit < len(wanted.moves) else [])


def test_a_cluster_without_bundles_has_no_limit_to_reach() -> None:
    shed = ask(make.cluster({"a": 90, "b": 10}, {}), replace(AT_ONCE, max_moves_per_cycle=0))

    assert [refusal.reason for refusal in shed.refusals] == [MoveRefusalReason.SOLE_BUNDLE]


def test_a_broker_above_its_limit_gives_and_never_takes() -> None:
    """A processor at 150 % beside a quiet network: the broker is the fullest of all, not one that carries 10 %."""
    bundles = [make.bundle(i, owner, 5) for i, owner in enumerate("aaaaaabbbb")]
    brokers = (_busy("a", 150, bundles), _busy("b", 40, bundles))
    levels = EvenLevels(Cluster(brokers, tuple(bundles)), AT_ONCE, BalanceState(), NOW_MS, frozenset())
    assert levels.load == {"a": 1.5, "b": 0.4}
    shed = ask(Cluster(brokers, tuple(bundles)))
    assert {(move.source, move.destination) for move in shed.moves} == {("a", "b")}


def test_a_weight_above_1_never_makes_a_loaded_broker_light() -> None:
    """At weight 2 a processor at 60 % counts as 120 %, and is still fuller than one at 30 %."""
    bundles = [make.bundle(i, owner, 5) for i, owner in enumerate("aaaaaabbb")]
    cluster = Cluster((_busy("a", 60, bundles), _busy("b", 30, bundles)), tuple(bundles))
    shed = ask(cluster, replace(AT_ONCE, cpu_weight=2.0))
    assert {(move.source, move.destination) for move in shed.moves} == {("a", "b")}


def _busy(name: str, percent: float, bundles: Sequence[Bundle], *, limit: float = 100.0) -> Broker:
    """A broker whose processor is used to `percent`, and its network to a fifteenth of that."""
    plain = make.broker(name, percent / 15, bundles, limit=limit)
    assert plain.report is not None
    resources = replace(plain.report.resources, cpu=ResourceUsage(percent * limit / 100, limit))
    return replace(plain, report=replace(plain.report, resources=resources))


@st.composite
def _carried(draw: st.DrawFn) -> tuple[list[list[float]], list[float]]:
    """What each broker's bundles take of a processor of size 100, in percent, and the size of each broker."""
    sizes = draw(st.sampled_from([(100.0,), (100.0,), (50.0, 100.0, 400.0)]))
    rows = draw(st.lists(st.lists(st.floats(0.5, 60), max_size=8), min_size=2, max_size=6))
    return rows, [draw(st.sampled_from(sizes)) for _ in rows]


@settings(max_examples=cases(300, 5_000))
@given(_carried(), st.sampled_from([1.0, 2.0]))
def test_no_cycle_makes_the_cluster_less_even_however_full_its_brokers_are(
    carried: tuple[list[list[float]], list[float]], weight: float
) -> None:
    """Usage is what the bundles cause and moves with them, above 100 % too; after every single move it is no worse."""
    rows, sizes = carried
    names = [f"b{i}" for i in range(len(rows))]
    size = dict(zip(names, sizes, strict=True))
    loads = {}
    for name, row in zip(names, rows, strict=True):
        loads |= {bundle_id(len(loads) + i): (name, one) for i, one in enumerate(row)}
    bundles = [make.bundle(i, owner, load) for i, (owner, load) in enumerate(loads.values())]
    used = {name: sum(load for owner, load in loads.values() if owner == name) for name in names}
    brokers = [_busy(n, 100 * used[n] / size[n], bundles, limit=size[n]) for n in names]
    shed = ask(Cluster(tuple(brokers), tuple(bundles)), replace(AT_ONCE, cpu_weight=weight))

    before = _spread(used, size)
    for move in shed.moves:
        used[move.source] -= loads[move.bundle_id][1]
        used[str(move.destination)] += loads[move.bundle_id][1]
        after_it = _spread(used, size)
        assert after_it <= before + 1e-9
        before = after_it


def _spread(used: Mapping[str, float], size: Mapping[str, float]) -> float:
    """Standard deviation of usage over the capacity of the brokers, as a share of the mean."""
    total = sum(size.values())
    mean = sum(used.values()) / total or 1.0
    return float(sum(size[n] * (used[n] / size[n] - mean) ** 2 for n in used) / total) ** 0.5 / mean


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
