"""Splits and unloads over real HTTP: the outcome is what is read afterwards, whatever was answered."""

from __future__ import annotations

import pytest

from controller.bundles.brokers import ActOutcome
from controller.bundles.domain.ring import NamespaceBundle, topic_hash
from controller.domain.errors import (
    BundleNotFound,
    Conflict,
    DataPlaneTimeout,
    DataPlaneUnavailable,
    InvalidInput,
    LostRace,
    NotFound,
)
from tests.support.bundle_brokers import TOKEN, ActionFailure, Bench

HALF = 0x80000000
NAMESPACE = "acme/shop"
LOWER, UPPER = NamespaceBundle(NAMESPACE, 0, HALF), NamespaceBundle(NAMESPACE, HALF, 0xFFFFFFFF)


@pytest.fixture(autouse=True)
def _shop(bench: Bench) -> None:
    """LOWER belongs to the first broker, UPPER to the second, which is reached by a redirect."""
    bench.cluster.add(NAMESPACE, HALF)


def ranges(parts: tuple[NamespaceBundle, ...]) -> list[tuple[int, int]]:
    return [(part.lower, part.upper) for part in parts]


@pytest.mark.parametrize("bundle", [LOWER, UPPER])
def test_a_split_is_asked_of_the_owner_once_and_seen(bench: Bench, bundle: NamespaceBundle) -> None:
    cut = bundle.lower + 1000

    result = bench.acts.split_at(bundle, [cut, cut])

    assert result.outcome is ActOutcome.DONE
    assert ranges(result.children) == [(bundle.lower, cut), (cut, bundle.upper)]
    [(_, path, positions)] = bench.cluster.acts
    assert "splitAlgorithmName=specified_positions_divide" in path
    assert positions == [cut]
    assert bench.cluster.tokens == {TOKEN}


def test_a_split_is_asked_at_another_address_when_the_first_is_dead(bench: Bench) -> None:
    both = Bench(bench.cluster, 5.0, ["http://127.0.0.1:1", f"http://{bench.cluster.brokers[0]}"])

    assert both.acts.split_at(LOWER, [1000]).outcome is ActOutcome.DONE
    assert len(bench.cluster.acts) == 1


def test_a_split_that_was_done_before_asks_nobody(bench: Bench) -> None:
    bench.cluster.split(LOWER, [1000])

    assert bench.acts.split_at(LOWER, [1000]).outcome is ActOutcome.DONE_ALREADY
    assert bench.cluster.acts == []


def test_several_places_are_one_call_where_the_broker_takes_it(bench: Bench) -> None:
    result = bench.acts.split_at(LOWER, [3000, 1000, 2000])

    assert ranges(result.children) == [(0, 1000), (1000, 2000), (2000, 3000), (3000, HALF)]
    assert len(bench.cluster.acts) == 1


def test_a_broker_that_takes_one_place_only_gets_them_one_by_one(bench: Bench) -> None:
    bench.cluster.is_extensible = True

    result = bench.acts.split_at(LOWER, [1000, 2000, 3000])

    assert result.outcome is ActOutcome.DONE
    assert ranges(result.children) == [(0, 1000), (1000, 2000), (2000, 3000), (3000, HALF)]
    assert [positions for _, _, positions in bench.cluster.acts] == [
        [1000, 2000, 3000],
        [1000],
        [2000],
        [3000],
    ]


def test_a_split_that_stopped_half_way_is_gone_on_with(bench: Bench) -> None:
    bench.cluster.split(LOWER, [2000])

    result = bench.acts.split_at(LOWER, [1000, 2000, 3000])

    assert ranges(result.children) == [(0, 1000), (1000, 2000), (2000, 3000), (3000, HALF)]


@pytest.mark.parametrize(
    "trouble",
    [ActionFailure.SILENT_AFTER, ActionFailure.BROKEN_AFTER, ActionFailure.ERROR_AFTER],
    ids=lambda t: t.name,
)
def test_a_split_of_unknown_outcome_is_found_done(bench: Bench, trouble: ActionFailure) -> None:
    bench.cluster.trouble = trouble

    assert bench.acts.split_at(LOWER, [1000]).outcome is ActOutcome.DONE
    assert len(bench.cluster.acts) == 1


@pytest.mark.parametrize(
    "trouble", [ActionFailure.SILENT_BEFORE, ActionFailure.ERROR_BEFORE], ids=lambda t: t.name
)
def test_a_split_nobody_can_tell_of_is_a_time_out_and_is_not_asked_twice(
    bench: Bench, trouble: ActionFailure
) -> None:
    bench.cluster.trouble = trouble

    with pytest.raises(DataPlaneTimeout, match=r"not known yet.*look again"):
        bench.acts.split_at(LOWER, [1000])

    assert len(bench.cluster.acts) == 1
    assert bench.acts.split_at(LOWER, [1000]).outcome is ActOutcome.DONE


def test_a_split_that_the_list_of_bundles_does_not_show_yet_is_waited_for(bench: Bench) -> None:
    bench.cluster.trouble = ActionFailure.LIST_BEFORE

    result = bench.acts.split_at(LOWER, [1000])

    assert (result.outcome, ranges(result.children)) == (ActOutcome.DONE, [(0, 1000), (1000, HALF)])
    assert len(bench.cluster.acts) == 1


def test_412_since_somebody_else_split_it_says_so(bench: Bench) -> None:
    bench.cluster.trouble = ActionFailure.SPLIT_BY_OTHERS

    with pytest.raises(BundleNotFound, match="another client split it into 0x00000000_0x40000000, 0x4"):
        bench.acts.split_at(LOWER, [1000])

    assert len(bench.cluster.acts) == 1


def test_a_bundle_that_was_split_before_the_call_is_not_asked_for(bench: Bench) -> None:
    bench.cluster.split(LOWER, [5])

    for act in (
        lambda: bench.acts.split_at(LOWER, [1000]),
        lambda: bench.acts.unload(LOWER),
    ):
        with pytest.raises(BundleNotFound, match="another client split it into 0x00000000_0x00000005"):
            act()
    assert bench.cluster.acts == []


@pytest.mark.parametrize("cuts", [[], [0], [HALF], [HALF + 1]])
def test_places_that_are_not_inside_never_go_out(bench: Bench, cuts: list[int]) -> None:
    with pytest.raises(InvalidInput):
        bench.acts.split_at(LOWER, cuts)
    assert bench.cluster.acts == []


def test_a_redirect_out_of_the_cluster_is_refused_and_takes_no_token_along(bench: Bench) -> None:
    bench.cluster.trouble = ActionFailure.AWAY

    with pytest.raises(DataPlaneUnavailable, match="not in the cluster's list of brokers") as caught:
        bench.acts.split_at(LOWER, [1000])

    assert "secret" not in str(caught.value)


def test_an_unload_goes_where_it_is_sent(bench: Bench) -> None:
    first, second = bench.cluster.brokers

    result = bench.acts.unload(LOWER, destination=second, source=first)

    assert (result.outcome, result.owner) == (ActOutcome.DONE, second)
    assert f"destinationBroker={second.replace(':', '%3A')}" in bench.cluster.acts[0][1]
    assert bench.acts.unload(LOWER, destination=second).outcome is ActOutcome.DONE_ALREADY
    assert len(bench.cluster.acts) == 1


def test_an_unload_is_looked_up_before_its_clients_use_the_destination_up(bench: Bench) -> None:
    """apache/pulsar#24884: the destination is used for the first look-up only, and a bundle's topics cause many."""
    second = bench.cluster.brokers[1]
    names = (f"persistent://{NAMESPACE}/orders-{number}" for number in range(99))
    bench.cluster.publish(next(name for name in names if LOWER.contains(topic_hash(name))))
    bench.cluster.trouble = ActionFailure.CLIENTS_FIRST

    assert bench.acts.unload(LOWER, destination=second).owner == second


def test_an_unload_whose_clients_were_faster_says_that_nothing_changed(bench: Bench) -> None:
    """A bundle without topics has nothing that could be looked up."""
    first, second = bench.cluster.brokers
    bench.cluster.trouble = ActionFailure.CLIENTS_FIRST

    result = bench.acts.unload(LOWER, destination=second)

    assert (result.outcome, result.owner) == (ActOutcome.NOTHING_CHANGED, first)


def test_an_unload_to_nobody_leaves_it_to_the_next_look_up(bench: Bench) -> None:
    assert bench.acts.unload(UPPER).owner is None
    assert bench.acts.unload(UPPER).outcome is ActOutcome.DONE_ALREADY


def test_an_owner_that_changed_since_is_a_lost_race(bench: Bench) -> None:
    with pytest.raises(LostRace, match="decide again"):
        bench.acts.unload(LOWER, source=bench.cluster.brokers[1])
    assert bench.cluster.acts == []


def test_a_destination_that_is_not_active_is_a_conflict(bench: Bench) -> None:
    with pytest.raises(Conflict, match="inactive destination"):
        bench.acts.unload(LOWER, destination="127.0.0.1:9")


@pytest.mark.parametrize(
    "trouble",
    [ActionFailure.SILENT_AFTER, ActionFailure.BROKEN_AFTER, ActionFailure.ERROR_AFTER],
    ids=lambda t: t.name,
)
def test_an_unload_of_unknown_outcome_is_found_done(bench: Bench, trouble: ActionFailure) -> None:
    bench.cluster.trouble = trouble

    result = bench.acts.unload(LOWER, destination=bench.cluster.brokers[1])

    assert (result.outcome, result.owner) == (ActOutcome.DONE, bench.cluster.brokers[1])


def test_an_unload_nobody_can_tell_of_is_a_time_out(bench: Bench) -> None:
    bench.cluster.trouble = ActionFailure.SILENT_BEFORE

    with pytest.raises(DataPlaneTimeout, match="not known yet"):
        bench.acts.unload(LOWER)


def test_a_namespace_that_is_none_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound, match="no namespace acme/none"):
        bench.acts.split_at(NamespaceBundle("acme/none", 0, HALF), [7])


def test_success_that_changed_nothing_is_told(bench: Bench) -> None:
    bench.cluster.trouble = ActionFailure.NOT_DONE

    result = bench.acts.split_at(LOWER, [1000])

    assert (result.outcome, result.children) == (ActOutcome.NOTHING_CHANGED, (LOWER,))
