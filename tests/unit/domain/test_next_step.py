"""The table of moves: every kind ends, in an order that never leaves a range without a way to a writable log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.hash_range import HashRange
from controller.domain.next_step import (
    ABORTABLE,
    ABORTABLE_SEEK,
    NOT_ABORTABLE,
    WAITS_BEFORE,
    Observed,
    abortable_states,
    is_abortable,
    next_step,
)
from controller.domain.operation import (
    Operation,
    OperationKind,
    OperationState,
    ReservedChild,
)
from controller.domain.operation_steps import MIRROR_MOVES, MOVES, Step
from controller.domain.reshape import ChildPlan, ReshapeKind
from tests.support.operations import DEADLINE_MS, make_operation

QUIET = Observed(now_ms=0, subscription_version=3)
RESHAPES = [kind for kind in OperationKind if kind.is_reshape]
WITH_CHILDREN = [*RESHAPES, OperationKind.CREATE, OperationKind.ADOPT]
LIVE_STATES = [(kind, state) for kind, moves in MOVES.items() for state in moves]
ON_BROKER_STATES = [(kind, state) for kind, moves in MIRROR_MOVES.items() for state in moves]
PAST_THE_FENCE = [(kind, state) for kind, state in LIVE_STATES if state not in abortable_states(kind)]


def an_operation(
    kind: OperationKind,
    state: OperationState = OperationState.INTENDED,
    noted: int | None = 3,
    *,
    on_broker: bool = False,
) -> Operation:
    """One with two children where the kind reserves any, subscriptions noted at the version `QUIET` shows."""
    plans = (ChildPlan(1, HashRange(0, 32767)), ChildPlan(2, HashRange(32768, 65535)))
    children = tuple(ReservedChild(plan, f"log-{plan.segment_id}") for plan in plans)
    return make_operation(
        kind,
        state,
        on_broker=on_broker,
        children=children if kind in WITH_CHILDREN and not on_broker else (),
        subscription_version=noted,
    )


def steps_of(
    kind: OperationKind,
    observed: Observed = QUIET,
    state: OperationState | None = None,
    *,
    on_broker: bool = False,
) -> list[Step]:
    """The steps taken until the operation is final, with the same thing seen before each."""
    operation, steps = an_operation(kind, state or OperationState.INTENDED, on_broker=on_broker), []
    while operation.state.is_live:
        step, leads_to = next_step(operation, observed)
        steps.append(step)
        operation = replace(operation, state=leads_to)
        assert len(steps) <= len(OperationState)
    return steps


@pytest.mark.parametrize("kind", MOVES)
def test_every_kind_ends_with_finish_when_nothing_goes_wrong(kind: OperationKind) -> None:
    assert steps_of(kind)[-1] is Step.FINISH


@pytest.mark.parametrize(
    ("kind", "state", "on_broker"),
    [*((*one, False) for one in LIVE_STATES), *((*one, True) for one in ON_BROKER_STATES)],
)
def test_every_state_leads_to_an_end(kind: OperationKind, state: OperationState, on_broker: bool) -> None:
    """`on_broker`: a broker keeps the layout."""
    assert steps_of(kind, state=state, on_broker=on_broker)[-1] in (Step.FINISH, Step.FINISH_ABORT)


def test_every_kind_has_moves_where_cleave_keeps_the_layout_or_where_a_broker_does() -> None:
    assert MOVES.keys() | MIRROR_MOVES.keys() == set(OperationKind)


def test_a_broker_is_asked_for_the_reshape_and_then_mirrored() -> None:
    steps = steps_of(OperationKind.SPLIT, on_broker=True)

    assert steps == [Step.RESHAPE_ON_BROKER, Step.COMMIT, Step.FINISH]


@pytest.mark.parametrize("kind", [OperationKind.SPLIT, OperationKind.MERGE, OperationKind.ATTACH])
def test_what_the_broker_has_not_done_can_be_given_up(kind: OperationKind) -> None:
    late = replace(QUIET, now_ms=DEADLINE_MS)

    assert steps_of(kind, late, on_broker=True) == [Step.ABORT, Step.FINISH_ABORT]


def test_what_the_broker_has_done_is_committed_however_late() -> None:
    late = replace(QUIET, now_ms=DEADLINE_MS, abort_requested=True)

    assert steps_of(OperationKind.SPLIT, late, OperationState.FENCED, on_broker=True) == [
        Step.COMMIT,
        Step.FINISH,
    ]


@pytest.mark.parametrize("kind", RESHAPES)
def test_a_reshape_makes_children_then_announces_the_fence_then_closes_parents_then_commits(
    kind: OperationKind,
) -> None:
    assert steps_of(kind) == [
        Step.CREATE_CHILDREN,
        Step.SET_FENCING,
        Step.TERMINATE_PARENTS,
        Step.COMMIT,
        Step.FINISH,
    ]


def test_a_kind_is_a_reshape_exactly_when_it_is_named_after_one() -> None:
    assert {kind.value for kind in RESHAPES} == {kind.value for kind in ReshapeKind}


@pytest.mark.parametrize("kind", WITH_CHILDREN)
@pytest.mark.parametrize("state", sorted(ABORTABLE))
@pytest.mark.parametrize(
    "observed",
    [replace(QUIET, abort_requested=True), replace(QUIET, now_ms=DEADLINE_MS)],
    ids=["asked to", "past its deadline"],
)
def test_before_the_fence_it_gives_up_when_asked_to_or_past_its_deadline(
    kind: OperationKind, state: OperationState, observed: Observed
) -> None:
    assert steps_of(kind, observed, state) == [Step.ABORT, Step.FINISH_ABORT]


@given(
    st.sampled_from(PAST_THE_FENCE),
    st.builds(
        Observed,
        now_ms=st.integers(0, 2 * DEADLINE_MS),
        subscription_version=st.integers(0, 5),
        other_live_operations=st.integers(0, 3),
        abort_requested=st.booleans(),
    ),
)
def test_past_the_fence_nothing_makes_it_give_up(
    where: tuple[OperationKind, OperationState], observed: Observed
) -> None:
    operation = an_operation(*where)

    assert not is_abortable(operation)
    assert next_step(operation, observed)[0] is not Step.ABORT


@pytest.mark.parametrize("kind", [kind for kind in WITH_CHILDREN if kind.succeeds_logs])
@pytest.mark.parametrize("state", [OperationState.FENCING, OperationState.FENCED, OperationState.COMMITTED])
def test_a_reshape_whose_fence_is_announced_goes_forward(kind: OperationKind, state: OperationState) -> None:
    late = replace(QUIET, now_ms=DEADLINE_MS, abort_requested=True)

    assert steps_of(kind, late, state)[-1] is Step.FINISH


def test_a_seek_is_given_up_when_asked_to_while_it_waits_and_at_no_deadline() -> None:
    late = replace(QUIET, now_ms=DEADLINE_MS)
    asked = replace(late, abort_requested=True, readers=2, other_live_operations=1)

    assert steps_of(OperationKind.SEEK, asked) == [Step.ABORT, Step.FINISH_ABORT]
    assert steps_of(OperationKind.SEEK, late)[-1] is Step.FINISH
    assert steps_of(OperationKind.SEEK, asked, OperationState.PREPARED)[-1] is Step.FINISH
    assert {*ABORTABLE_SEEK} == {OperationState.INTENDED}


@pytest.mark.parametrize("kind", [*sorted(NOT_ABORTABLE & MOVES.keys()), OperationKind.PRUNE])
def test_what_reserved_nothing_is_not_given_up_on_request_or_by_a_deadline(kind: OperationKind) -> None:
    late = Observed(now_ms=2 * DEADLINE_MS, subscription_version=3, abort_requested=True)

    assert steps_of(kind, late)[-1] is Step.FINISH


@pytest.mark.parametrize("kind", WITH_CHILDREN)
@pytest.mark.parametrize("noted", [None, 2])
def test_it_never_commits_with_subscriptions_other_than_those_noted(
    kind: OperationKind, noted: int | None
) -> None:
    before_commit = OperationState.FENCED if kind.succeeds_logs else OperationState.PREPARED
    operation = an_operation(kind, before_commit, noted)

    assert next_step(operation, QUIET) == (Step.SYNC_SUBSCRIPTIONS, before_commit)
    assert next_step(replace(operation, subscription_version=3), QUIET)[0] is Step.COMMIT


@pytest.mark.parametrize("kind", WAITS_BEFORE)
def test_a_deletion_waits_for_every_older_operation(kind: OperationKind) -> None:
    operation = an_operation(kind, WAITS_BEFORE[kind], on_broker=kind in MIRROR_MOVES)

    assert next_step(operation, replace(QUIET, other_live_operations=1)) == (Step.WAIT, operation.state)
    assert next_step(operation, QUIET)[0] is not Step.WAIT


@pytest.mark.parametrize(
    ("kind", "on_broker"),
    [
        pytest.param(OperationKind.DELETE, False, id="delete"),
        pytest.param(OperationKind.DELETE, True, id="delete-on-broker"),
        pytest.param(OperationKind.DETACH, True, id="detach"),
        pytest.param(OperationKind.SUBSCRIPTION_DELETE, False, id="subscription_delete"),
    ],
)
def test_deletions_wait_for_every_older_operation_of_their_topic(
    kind: OperationKind, on_broker: bool
) -> None:
    """Named one by one: a kind that is missing in the table would be missing in a test made from it."""
    operation = an_operation(kind, on_broker=on_broker)

    assert next_step(operation, replace(QUIET, other_live_operations=1))[0] is Step.WAIT


@given(st.lists(st.sampled_from(list(MOVES)), min_size=1, max_size=6))
def test_operations_of_one_topic_never_wait_for_each_other_in_a_circle(kinds: list[OperationKind]) -> None:
    """Whatever the mix, all of them end when each gets its turn, the youngest first."""
    live = [replace(an_operation(kind), operation_id=number) for number, kind in enumerate(kinds)]
    for _ in range(len(kinds) * len(OperationState)):
        for operation in sorted(live, key=lambda one: -one.operation_id):
            older = sum(other.operation_id < operation.operation_id for other in live)
            leads_to = next_step(operation, replace(QUIET, other_live_operations=older))[1]
            live.remove(operation)
            if leads_to.is_live:
                live.append(replace(operation, state=leads_to))

    assert live == []
