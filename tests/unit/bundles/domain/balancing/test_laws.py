"""Laws of every shedder, placement and cycle, on any cluster, state and valid settings."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from controller.bundles.domain.balancing.balance import (
    SHEDDERS,
    BalanceInputs,
    BalanceVerdict,
    balance,
    observed,
)
from controller.bundles.domain.balancing.moves import BalanceState
from controller.bundles.domain.balancing.settings import SHEDDER_NAMES, BalanceSettings, violations
from controller.bundles.domain.cluster import Cluster
from controller.bundles.domain.cycle_text import (
    canonical_text,
    read_balance_inputs,
    read_balance_state,
    write_balance_inputs,
    write_balance_state,
    write_balance_verdict,
)
from controller.domain.pulsar_names import belongs_to_a_broker
from tests.support.drawn import cases
from tests.unit.bundles.domain.balancing import clusters as make
from tests.unit.bundles.domain.balancing.clusters import NOW_MS

FEWER = settings(max_examples=cases(10, 80))  # each example is a whole cluster


@st.composite
def asked(draw: st.DrawFn, shedders: tuple[str, ...] = SHEDDER_NAMES) -> BalanceInputs:
    return BalanceInputs(
        cluster=draw(make.clusters()),
        settings=draw(make.settings(shedders)),
        state=draw(make.states()),
        now_ms=NOW_MS,
    )


@FEWER
@given(asked())
def test_a_cycle_moves_each_bundle_once_away_from_its_owner_to_a_broker_that_is_there(
    inputs: BalanceInputs,
) -> None:
    verdict = balance(inputs)
    active = {name for name, _ in inputs.cluster.reporting}

    assert len({move.bundle_id for move in verdict.moves}) == len(verdict.moves)
    for move in verdict.moves:
        found = inputs.cluster.bundle_by_id[move.bundle_id]
        assert found.owner == move.source
        assert move.destination in active - {move.source}
        allowed = inputs.cluster.policy_of(found.namespace).brokers
        assert allowed is None or move.destination in allowed
        assert not belongs_to_a_broker(found.namespace)
        assert not inputs.settings.excludes(found.namespace)
        assert found.load is not None


@FEWER
@given(asked(), st.sampled_from(SHEDDER_NAMES))
def test_no_shedder_empties_a_broker(inputs: BalanceInputs, name: str) -> None:
    state = observed(inputs.cluster, inputs.settings, inputs.state, NOW_MS)
    shed = SHEDDERS[name](inputs.cluster, inputs.settings, state, NOW_MS)
    has = Counter(bundle.owner for bundle in inputs.cluster.bundles)

    for move in shed.moves:  # one after the other: who took one in the same cycle may give one
        has[move.source] -= 1
        has[move.destination] += 1
        assert has[move.source] >= 1
    assert all(move.destination != move.source for move in shed.moves)


@pytest.mark.parametrize("name", SHEDDER_NAMES)
def test_the_clusters_these_laws_are_asked_about_do_move(name: str) -> None:
    """A law about moves proves nothing for clusters where nothing moves."""
    found = find(
        asked((name,)),
        lambda inputs: len(balance(inputs).moves) >= 2,
        settings=settings(max_examples=5_000, database=None, phases=[Phase.generate]),
        random=Random(0),
    )
    assert len(balance(found).moves) >= 2


@FEWER
@given(asked())
def test_what_was_just_moved_stays(inputs: BalanceInputs) -> None:
    first = balance(inputs)
    moved = {move.bundle_id: move.destination for move in first.moves}
    later = BalanceInputs(
        cluster=inputs.cluster.with_owners(moved),
        settings=inputs.settings,
        state=first.state.after(first.moves, NOW_MS),
        now_ms=NOW_MS + 60_000,
    )

    assert not moved.keys() & {move.bundle_id for move in balance(later).moves}


@FEWER
@given(asked(), st.randoms(use_true_random=False))
def test_the_order_in_which_it_was_gathered_does_not_matter(inputs: BalanceInputs, shuffler: object) -> None:
    def shuffled(values: tuple[object, ...]) -> tuple[object, ...]:
        mixed = list(values)
        shuffler.shuffle(mixed)  # type: ignore[attr-defined]
        return tuple(mixed)

    cluster = inputs.cluster
    other = Cluster(
        shuffled(cluster.brokers),  # type: ignore[arg-type]
        shuffled(cluster.bundles),  # type: ignore[arg-type]
        dict(reversed(cluster.policies.items())),
    )
    again = BalanceInputs(cluster=other, settings=inputs.settings, state=inputs.state, now_ms=NOW_MS)

    assert balance(again) == balance(inputs)
    assert canonical_text(write_balance_inputs(again)) == canonical_text(write_balance_inputs(inputs))


@FEWER
@given(asked())
def test_a_stored_cycle_asked_again_gives_the_same_bytes(inputs: BalanceInputs) -> None:
    text = canonical_text(write_balance_inputs(inputs))
    answer = canonical_text(write_balance_verdict(balance(inputs)))
    replayed = read_balance_inputs(json.loads(text))

    assert canonical_text(write_balance_inputs(replayed)) == text
    assert canonical_text(write_balance_verdict(balance(replayed))) == answer


@given(make.states())
def test_a_state_comes_back_from_its_text(state: BalanceState) -> None:
    assert read_balance_state(json.loads(canonical_text(write_balance_state(state)))) == state


@given(make.settings())
def test_valid_settings_come_back_from_their_document(valid: BalanceSettings) -> None:
    assert violations(valid) == ()
    assert BalanceSettings.from_document(valid.to_document()) == valid


@FEWER
@given(asked())
def test_departed_brokers_leave_nothing_in_the_state(inputs: BalanceInputs) -> None:
    state = balance(inputs).state
    names = {broker.name for broker in inputs.cluster.brokers}

    for by_broker in (
        state.usage_averages,
        state.broker_averages,
        state.low_hits,
        state.high_hits,
        state.hot_hits,
    ):
        assert by_broker.keys() <= names
    assert set(state.planned.values()) <= names


def test_nothing_to_do_is_an_answer_with_reasons() -> None:
    verdict = balance(BalanceInputs(cluster=Cluster(), now_ms=NOW_MS))

    assert verdict == BalanceVerdict((), verdict.refusals, verdict.state)
    assert [refusal.reason for refusal in verdict.refusals] == ["few-brokers"]
