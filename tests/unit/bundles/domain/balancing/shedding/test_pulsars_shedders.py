"""Pulsar's overload, threshold, uniform and avg shedders on chosen figures; the oracle tests random ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.bundles.domain.balancing.balance import SHEDDERS
from controller.bundles.domain.balancing.moves import BalanceState, MoveRefusalReason
from controller.bundles.domain.balancing.settings import BalanceSettings
from controller.bundles.domain.balancing.shedding.avg import avg
from controller.bundles.domain.balancing.shedding.overload_and_threshold import overload, threshold
from controller.bundles.domain.balancing.shedding.shedder import Shedding
from controller.bundles.domain.balancing.shedding.uniform import uniform
from controller.bundles.domain.cluster import Cluster
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import MIB, NOW_MS, bundle_id

EAGER = BalanceSettings(threshold_min_byte_rate=0, min_unload_msg_rate=0, min_unload_byte_rate=0)


def numbers(shed: Shedding) -> list[int]:
    """Which of the numbered bundles leave, in order."""
    return [int(move.bundle_id.rpartition("/")[2][2:10], 16) for move in shed.moves]


def reasons(shed: Shedding) -> dict[str | None, MoveRefusalReason]:
    return {refusal.broker: refusal.reason for refusal in shed.refusals}


@pytest.mark.parametrize("name", SHEDDERS)
def test_with_one_broker_there_is_nowhere_to_go(name: str) -> None:
    alone = make.cluster({"a": 99}, {"a": [5, 5, 5]})
    shed = SHEDDERS[name](alone, EAGER, make.observed(alone), NOW_MS)
    assert shed.moves == ()
    assert reasons(shed)[None] is MoveRefusalReason.FEW_BROKERS


@pytest.mark.parametrize(
    ("percent", "leaving"),
    [
        (84, []),
        (85, [0]),  # at the threshold it sheds: 5 % of 200 MiB/s
        (90, [0]),  # 10 %: the heaviest alone covers it
        (100, [0, 1]),  # 20 % is 40 MiB/s: 30 do not cover it, 30 and 25 do
    ],
)
def test_overload_sheds_enough_to_come_five_points_below(percent: float, leaving: list[int]) -> None:
    cluster = make.cluster({"a": percent, "b": 10}, {"a": [15, 12.5, 10, 10, 10, 10, 10, 10, 12.5], "b": [1]})
    assert numbers(overload(cluster, EAGER, BalanceState(), NOW_MS)) == leaving


def test_the_last_bundle_stays_even_where_its_broker_carries_more_than_its_bundles() -> None:
    cluster = make.cluster({"a": 100, "b": 10}, {"a": [1, 1], "b": []})
    report = cluster.broker_by_name["a"].report
    assert report is not None
    heavy = replace(report, stats=replace(report.stats, byte_rate_in=1e12))
    cluster = Cluster(
        (replace(cluster.broker_by_name["a"], report=heavy), cluster.broker_by_name["b"]), cluster.bundles
    )

    assert numbers(overload(cluster, EAGER, BalanceState(), NOW_MS)) == [0]


def test_reasons_name_the_figure_and_what_it_had_to_be() -> None:
    cluster = make.cluster({"a": 84, "b": 90, "c": 95}, {"a": [1, 1], "b": [1], "c": [2, 2]})
    state = BalanceState(unloaded_bundles={bundle_id(3): NOW_MS - 1, bundle_id(4): NOW_MS - 1_800_000})
    shed = overload(cluster, EAGER, state, NOW_MS)

    assert shed.moves == ()
    assert reasons(shed) == {
        "a": MoveRefusalReason.BELOW_THRESHOLD,
        "b": MoveRefusalReason.SOLE_BUNDLE,
        "c": MoveRefusalReason.NO_BUNDLES,
    }
    assert (shed.refusals[0].value, shed.refusals[0].needed) == (0.84, 0.85)
    # The grace period is over once it is exceeded, not when it is reached.
    assert numbers(overload(cluster, EAGER, state, NOW_MS + 1)) == [4]


def test_threshold_as_in_pulsars_documentation() -> None:
    """Usages 40, 10 and 10: mean 20, bound 30, only the first sheds, 15 % of what it carries."""
    cluster = make.cluster({"a": 40, "b": 10, "c": 10}, {"a": [10, 6, 6, 6, 6, 6], "b": [4], "c": [4]})
    shed = threshold(cluster, EAGER, BalanceState(), NOW_MS)

    assert numbers(shed) == [0]  # 10 of 40 covers 6
    assert dict(shed.state.usage_averages) == pytest.approx({"a": 0.4, "b": 0.1, "c": 0.1})


def test_threshold_waits_for_its_average_and_for_its_floor() -> None:
    cluster = make.cluster({"a": 80, "b": 20}, {"a": [10, 10, 10], "b": [10]})
    calm = BalanceState(usage_averages={"a": 0.5, "b": 0.5, "gone": 0.9})
    shed = threshold(cluster, EAGER, calm, NOW_MS)
    assert reasons(shed) == {"a": MoveRefusalReason.BELOW_THRESHOLD, "b": MoveRefusalReason.BELOW_THRESHOLD}
    assert dict(shed.state.usage_averages) == pytest.approx({"a": 0.53, "b": 0.47})

    floored = threshold(cluster, replace(EAGER, threshold_min_byte_rate=100 * MIB), BalanceState(), NOW_MS)
    assert reasons(floored)["a"] is MoveRefusalReason.BELOW_FLOOR


def test_the_lower_boundary_helps_a_new_broker_where_nobody_is_above() -> None:
    usages = {"a": 50, "b": 49, "c": 50, "d": 50, "e": 50, "f": 0}
    cluster = make.cluster(usages, {name: [10, 10] for name in "abcde"})
    assert threshold(cluster, EAGER, BalanceState(), NOW_MS).moves == ()

    lower = threshold(cluster, replace(EAGER, threshold_lower_boundary=True), BalanceState(), NOW_MS)
    assert [(move.source, move.bundle_id) for move in lower.moves] == [("a", bundle_id(0))]


@pytest.mark.parametrize(
    ("loads", "leaving"),
    [
        ({"a": [10, 5, 5], "b": [20]}, []),
        (
            {"a": [20, 6, 4], "b": [10]},
            [1],
        ),  # 35 % of 40 MiB/s, in and out: 14, where 20 each way do not fit, 6 do
        ({"a": [20, 4, 3, 1], "b": [8]}, [1, 2]),  # 14 MiB/s: 8 and 6, and nothing is left
        ({"a": [30], "b": [1]}, []),
    ],
)
def test_uniform_levels_the_ends(loads: dict[str, list[float]], leaving: list[int]) -> None:
    cluster = make.cluster({"a": 50, "b": 50}, loads)
    settings = replace(EAGER, unload_fraction=0.35)
    assert numbers(uniform(cluster, settings, BalanceState(), NOW_MS)) == leaving


def test_uniform_is_not_bound_to_32_bits() -> None:
    huge = {"a": [9_000, 2_000, 1_000], "b": [3_000], "c": [6_000]}
    cluster = make.cluster({"a": 50, "b": 50, "c": 50}, huge)
    messages_off = replace(EAGER, uniform_msg_rate_difference=0, uniform_byte_rate_ratio=1.5)
    shed = uniform(cluster, messages_off, BalanceState(), NOW_MS)
    # A fifth of 18,000 MiB/s is 3,600: beyond 2^31 - 1, and the least any of them carries is, too.
    assert [move.metric for move in shed.moves] == ["byte_rate"]
    assert numbers(shed) == [2]


def test_a_rule_of_uniform_is_switched_off_by_zero_and_bundles_are_counted() -> None:
    cluster = make.cluster({"a": 50, "b": 50}, {"a": [2] * 10, "b": [1]})
    off = replace(EAGER, uniform_msg_rate_difference=0, uniform_byte_rate_ratio=0)
    assert uniform(cluster, off, BalanceState(), NOW_MS).moves == ()
    assert len(uniform(cluster, replace(EAGER, unload_fraction=0.5), BalanceState(), NOW_MS).moves) == 4
    assert (
        len(
            uniform(
                cluster, replace(EAGER, max_unload_bundles=2, unload_fraction=0.5), BalanceState(), NOW_MS
            ).moves
        )
        == 2
    )


def test_avg_acts_after_two_cycles_far_apart_or_eight_closer_ones() -> None:
    def cycles_until_it_moves(high: float) -> int:
        cluster = make.cluster({"a": high, "b": 20}, {"a": [5, 5, 5], "b": [1]})
        state = BalanceState()
        for cycle in range(1, 20):
            shed = avg(cluster, replace(EAGER, unload_fraction=0.5), state, NOW_MS)
            if shed.moves:
                return cycle
            state = shed.state
        return 0

    assert [cycles_until_it_moves(high) for high in (34, 35, 59, 60, 90)] == [0, 8, 8, 2, 2]


def test_avg_pairs_inward_and_names_the_destination() -> None:
    usages = {"a": 10, "b": 90, "c": 50, "d": 20, "e": 80}
    cluster = make.cluster(usages, {"b": [9, 3, 2], "e": [4, 4, 4], "c": [5, 5], "a": [1], "d": [1]})
    settings = replace(EAGER, avg_high_hits=1, unload_fraction=0.5)
    shed = avg(cluster, settings, BalanceState(low_hits={"c": 3}), NOW_MS)

    assert {(move.source, move.destination) for move in shed.moves} == {("b", "a"), ("e", "d")}
    assert shed.state.planned == {move.bundle_id: move.destination for move in shed.moves}
    assert (
        dict(shed.state.low_hits) == {}
    )  # those that acted, and the middle one, which is paired with itself


def test_avg_never_moves_a_sole_bundle_and_looks_at_the_floors_after_clearing_its_counts() -> None:
    sole = make.cluster({"a": 90, "b": 10}, {"a": [5], "b": []})
    settings = replace(EAGER, avg_high_hits=1, unload_fraction=1.0)
    shed = avg(sole, settings, BalanceState(), NOW_MS)
    assert reasons(shed) == {"a": MoveRefusalReason.SOLE_BUNDLE}

    floored = avg(
        sole, replace(settings, min_unload_msg_rate=1e12, min_unload_byte_rate=1e12), BalanceState(), NOW_MS
    )
    assert reasons(floored) == {"a": MoveRefusalReason.BELOW_FLOOR}
    assert dict(floored.state.high_hits) == {}
