"""Where a bundle goes: who may take it (policy, room for topics, anti-affinity, even spread, in that order), each
placement on chosen figures, and the random choice, which is reproducible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from controller.bundles.domain.balancing.moves import BalanceState, BrokerAverages
from controller.bundles.domain.balancing.placement import LAST_TURN, Choice, Occupancy, placement
from controller.bundles.domain.balancing.settings import PLACEMENT_NAMES, BalanceSettings
from controller.bundles.domain.cluster import Broker, Bundle, Cluster, NamespacePolicy
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import bundle_id

SETTINGS = BalanceSettings()


def ask(
    name: str,
    usages: dict[str, float],
    loads: dict[str, list[float]] | None = None,
    state: BalanceState | None = None,
    candidates: tuple[str, ...] | None = None,
    settings: BalanceSettings = SETTINGS,
) -> Choice:
    occupancy = Occupancy(make.cluster(usages, loads or {}), settings)
    chosen_from = sorted(usages) if candidates is None else candidates
    return placement(name)(bundle_id(0), chosen_from, occupancy, settings, state or BalanceState())


@pytest.mark.parametrize("name", PLACEMENT_NAMES)
def test_without_candidates_nobody_is_chosen_and_nothing_is_counted(name: str) -> None:
    state = BalanceState(round_robin=3, draws=5)
    assert ask(name, {"a": 10}, state=state, candidates=()) == Choice(None, (), state)


def test_the_least_long_term_rate_wins_whatever_the_usage_up_to_the_threshold() -> None:
    choice = ask("least_long_term_rate", {"a": 85, "b": 10, "c": 86}, {"a": [1], "b": [2], "c": []})
    assert (choice.broker, choice.among) == ("a", ("a",))  # at the threshold is not above it
    overloaded = ask("least_long_term_rate", {"a": 90, "b": 95}, {"a": [1], "b": [2]})
    assert overloaded.among == ("a", "b")


def test_a_bundle_on_its_way_counts_for_its_destination_already() -> None:
    cluster = make.cluster({"a": 10, "b": 10, "c": 10}, {"a": [5, 5], "b": [4], "c": [8]})
    occupancy = Occupancy(cluster, SETTINGS)
    occupancy.move(bundle_id(0), "b")
    choice = placement("least_long_term_rate")(bundle_id(9), "abc", occupancy, SETTINGS, BalanceState())
    assert choice.among == ("a",)


def test_usage_well_below_the_mean_qualifies_at_the_gap_exactly() -> None:
    state = BalanceState()
    assert ask("least_usage", {"a": 25, "b": 50, "c": 75}, state=state).among == ("a",)
    assert ask("least_usage", {"a": 40, "b": 60}).among == ("a",)
    assert ask("least_usage", {"a": 41, "b": 60}).among == ("a", "b")


def test_over_placement_of_pip_364_is_kept_and_the_default_does_not_use_it() -> None:
    """40, 40, 40, 40, 69 and 70: none is low enough, so any is chosen, the two fullest included."""
    usages = dict(zip("abcdef", (40, 40, 40, 40, 69, 70), strict=True))
    assert ask("least_usage", usages).among == tuple("abcdef")
    assert BalanceSettings().placement != "least_usage"


def test_every_choice_advances_the_averages_and_an_idle_broker_has_no_past() -> None:
    state = BalanceState(placement_averages={"a": 0.9, "b": 0.9})
    choice = ask("least_usage", {"a": 10, "b": 10}, {"a": [1]}, state)
    assert dict(choice.state.placement_averages) == pytest.approx({"a": 0.82, "b": 0.1})
    again = ask("least_usage", {"a": 10, "b": 10}, {"a": [1]}, choice.state)
    assert again.state.placement_averages["a"] == pytest.approx(0.748)


def test_the_extensible_kind_reads_what_was_reported_and_may_fall_back_on_the_silent() -> None:
    averages = {"a": BrokerAverages(0.1, 0, 0), "b": BrokerAverages(0.5, 0, 0)}
    state = BalanceState(broker_averages=averages)
    assert ask("least_reported_usage", {"a": 99, "b": 1, "c": 0}, state=state).among == ("a",)
    near = replace(state, broker_averages=averages | {"a": BrokerAverages(0.45, 0, 0)})
    assert ask("least_reported_usage", {"a": 99, "b": 1, "c": 0}, state=near).among == ("a", "b", "c")


def test_turns_go_round_by_name_and_begin_again_after_the_last() -> None:
    state, chosen = BalanceState(round_robin=LAST_TURN - 1), []
    for _ in range(4):
        choice = ask("round_robin", {"a": 1, "b": 1, "c": 1}, state=state)
        chosen.append(choice.broker)
        state = choice.state
    assert chosen == ["a", "b", "a", "b"]  # 2^31 - 2 and 2^31 - 1 are 0 and 1 modulo 3
    assert state.round_robin == 2


def test_a_plan_is_kept_while_its_broker_is_a_candidate() -> None:
    state = BalanceState(planned={bundle_id(0): "b"})
    assert ask("planned", {"a": 1, "b": 99}, state=state) == Choice("b", ("b",), state)

    gone = ask("planned", {"a": 1, "c": 1}, state=state)
    assert gone.among == ("a", "c")
    assert gone.state.planned == {bundle_id(0): gone.broker}
    assert ask("planned", {"a": 1, "c": 1}, state=gone.state).broker == gone.broker


def test_choices_among_equals_are_spread_and_repeat_for_the_same_state() -> None:
    state, chosen = BalanceState(), []
    for _ in range(300):
        choice = ask("least_usage", {"a": 50, "b": 50, "c": 50}, state=state)
        assert choice == ask("least_usage", {"a": 50, "b": 50, "c": 50}, state=state)
        chosen.append(choice.broker)
        state = choice.state
    assert all(60 <= chosen.count(name) <= 140 for name in "abc")


SPARE = make.bundle(99, None, 1)


def occupancy(
    names: str,
    bundles: tuple[Bundle, ...] = (),
    policies: Mapping[str, NamespacePolicy] | None = None,
    settings: BalanceSettings = SETTINGS,
    domains: Mapping[str, str] | None = None,
) -> Occupancy:
    brokers = tuple(make.broker(name, 10, bundles, domain=(domains or {}).get(name)) for name in names)
    return Occupancy(Cluster(brokers, (*bundles, SPARE), policies or {}), settings)


def test_only_brokers_that_report_and_that_the_policy_leaves_are_candidates() -> None:
    policies = {"t/ns": NamespacePolicy(frozenset({"b", "c", "silent"}))}
    brokers = (*(make.broker(name, 10) for name in "abc"), Broker("silent"))
    there = Occupancy(Cluster(brokers, (SPARE,), policies), SETTINGS)
    assert there.candidates(SPARE) == ("b", "c")
    assert there.may_take(SPARE, "b")
    assert not there.may_take(SPARE, "a")


def test_where_the_policy_leaves_nobody_there_is_nobody() -> None:
    policies = {"t/ns": NamespacePolicy(frozenset())}
    assert occupancy("ab", policies=policies).candidates(SPARE) == ()


def test_a_broker_with_too_many_topics_is_out_unless_all_have() -> None:
    settings = BalanceSettings(max_topics_per_broker=10, spread_namespaces=False)
    full = make.bundle(1, "a", 1, topics=11)
    there = occupancy("ab", (full,), settings=settings)
    assert there.candidates(SPARE) == ("b",)
    # Where somebody is told to take it, its own topics count as well.
    edge = occupancy("ab", (make.bundle(1, "a", 1, topics=10),), settings=settings)
    assert edge.candidates(SPARE) == ("a", "b")
    assert not edge.may_take(SPARE, "a")
    both = occupancy("ab", (full, make.bundle(2, "b", 1, topics=11)), settings=settings)
    assert both.candidates(SPARE) == ("a", "b")


def test_a_namespace_is_spread_evenly_and_moves_on_the_way_count() -> None:
    bundles = (
        make.bundle(0, "a", 1),
        make.bundle(1, "a", 1),
        make.bundle(2, "b", 1),
        make.bundle(3, "c", 1, namespace="t/x"),
    )
    there = occupancy("abc", bundles)
    assert there.candidates(SPARE) == ("c",)
    there.move(make.bundle_id(0), "c")
    assert there.candidates(SPARE) == ("a", "b", "c")
    anyhow = occupancy("abc", bundles, settings=BalanceSettings(spread_namespaces=False))
    assert anyhow.candidates(SPARE) == ("a", "b", "c")


@pytest.mark.parametrize("namespace", ["pulsar/system", "pulsar/host:8080"])
def test_pulsars_own_namespaces_are_spread_whatever_the_setting(namespace: str) -> None:
    own = make.bundle(0, "a", 1, namespace=namespace)
    there = occupancy("ab", (own,), settings=BalanceSettings(spread_namespaces=False))
    assert there.candidates(Bundle(f"{namespace}/0x00000005_0x00000006")) == ("b",)


GROUP = {name: NamespacePolicy(anti_affinity_group="g") for name in ("t/ns", "t/one", "t/two")}


def test_namespaces_of_a_group_keep_to_different_domains_and_then_brokers() -> None:
    held = (make.bundle(0, "a", 1, namespace="t/one"),)
    racks = {"a": "rack-1", "b": "rack-1", "c": "rack-2", "d": "rack-2"}
    assert occupancy("abcd", held, GROUP, domains=racks).candidates(SPARE) == ("c", "d")
    held += (make.bundle(1, "c", 1, namespace="t/two"),)
    there = occupancy("abcd", held, GROUP, domains=racks)
    assert there.candidates(SPARE) == ("b", "d")
    assert not there.may_take(SPARE, "a")
    assert there.may_take(SPARE, "d")


def test_two_bundles_of_one_namespace_count_once_for_its_group() -> None:
    held = (
        make.bundle(0, "a", 1, namespace="t/one"),
        make.bundle(1, "a", 1, namespace="t/one"),
        make.bundle(2, "b", 1, namespace="t/two"),
    )
    settings = BalanceSettings(spread_namespaces=False)
    assert occupancy("ab", held, GROUP, settings).candidates(SPARE) == ("a", "b")


def test_a_bundle_does_not_join_another_namespace_of_its_group() -> None:
    """Both brokers have one namespace of the group; each bundle stays with its own."""
    held = (
        make.bundle(0, "a", 1, namespace="t/one"),
        make.bundle(1, "a", 1, namespace="t/one"),
        make.bundle(2, "b", 1, namespace="t/two"),
    )
    there = occupancy("ab", held, GROUP)
    assert there.candidates(held[0]) == ("a",)
    assert not there.may_take(held[0], "b")
    assert occupancy("abc", held, GROUP).may_take(held[0], "c")
    racks = occupancy("abc", held, GROUP, domains={"a": "r1", "b": "r2", "c": "r2"})
    assert not racks.may_take(held[0], "c")
    assert racks.candidates(held[0]) in (("a",), ())


def test_a_namespace_without_a_policy_keeps_off_the_brokers_of_others() -> None:
    brokers = tuple(make.broker(name, 10) for name in "abc")
    there = Occupancy(Cluster(brokers, (SPARE,), {}, frozenset({"b", "c"})), SETTINGS)
    assert there.candidates(SPARE) == ("b", "c")
    assert not there.may_take(SPARE, "a")
