"""After a failed step an operation is tried again, aborted, deferred, or finished without its last action."""

from __future__ import annotations

import pytest

from controller.domain.errors import (
    CleaveError,
    DataPlaneUnavailable,
    FencedOut,
    HeldUp,
    LostRace,
    Terminal,
)
from controller.domain.next_step import Observed
from controller.domain.operation import UNDOES, Operation, OperationKind, OperationState
from controller.services.operation_runner.after_a_failure import AfterFailure, Reaction, after_failure
from controller.services.operation_runner.backoff import LOST_RACES_IN_A_ROW
from tests.support.operations import DEADLINE_MS, make_operation

REFUSED = Terminal("not allowed")
UNAVAILABLE = DataPlaneUnavailable("no broker", 0.1)


def after(
    error: CleaveError,
    operation: Operation,
    *,
    now_ms: int | None = 0,
    abort_requested: bool = False,
    lost_races: int = 0,
    is_aborted_next: bool = False,
    is_action_left_out: bool = False,
) -> AfterFailure:
    """What follows the error at `now_ms`; None: without an observation."""
    return after_failure(
        error,
        operation,
        None
        if now_ms is None
        else Observed(now_ms=now_ms, subscription_version=3, abort_requested=abort_requested),
        8.0,
        lost_races=lost_races,
        is_aborted_next=is_aborted_next,
        is_action_left_out=is_action_left_out,
    )


INTENDED_SPLIT = make_operation(OperationKind.SPLIT, OperationState.INTENDED)
FENCED_SPLIT = make_operation(OperationKind.SPLIT, OperationState.FENCED)


@pytest.mark.parametrize("state", [state for state in OperationState if state.is_live])
def test_a_lost_claim_ends_the_run_in_every_state(state: OperationState) -> None:
    operation = make_operation(OperationKind.SPLIT, state)

    assert after(FencedOut("taken over"), operation).reaction is Reaction.LEAVE


@pytest.mark.parametrize("error", [LostRace("changed", 0.01), HeldUp("locked", 0.01)])
def test_a_lost_race_is_tried_again_after_growing_pauses_and_then_deferred(error: LostRace) -> None:
    assert after(error, INTENDED_SPLIT) == (Reaction.TRY_AGAIN, 0.01)
    assert after(error, INTENDED_SPLIT, lost_races=2) == (Reaction.TRY_AGAIN, 0.04)
    last = LOST_RACES_IN_A_ROW - 1
    assert after(error, INTENDED_SPLIT, lost_races=last - 1).reaction is Reaction.TRY_AGAIN
    assert after(error, INTENDED_SPLIT, lost_races=last) == (Reaction.DEFER, 0.1)


@pytest.mark.parametrize("state", [OperationState.INTENDED, OperationState.PREPARED])
def test_a_refused_reshape_is_aborted_before_its_fence_only_once(state: OperationState) -> None:
    operation = make_operation(OperationKind.SPLIT, state)

    assert after(REFUSED, operation).reaction is Reaction.ABORT
    assert after(REFUSED, operation, is_aborted_next=True).reaction is Reaction.DEFER


@pytest.mark.parametrize(
    ("state", "on_broker", "expected"),
    [
        (OperationState.FENCING, False, Reaction.DEFER),
        (OperationState.FENCED, False, Reaction.DEFER),
        (OperationState.FENCED, True, Reaction.ABORT),
    ],
    ids=["fencing", "fenced", "fenced, and a broker keeps the layout"],
)
def test_a_refused_reshape_is_deferred_after_its_fence_unless_a_broker_keeps_the_layout(
    state: OperationState, on_broker: bool, expected: Reaction
) -> None:
    operation = make_operation(OperationKind.SPLIT, state, on_broker=on_broker)

    assert after(REFUSED, operation).reaction is expected


@pytest.mark.parametrize("state", [OperationState.COMMITTED, OperationState.ABORTING])
def test_a_refused_last_action_is_left_out_once(state: OperationState) -> None:
    operation = make_operation(OperationKind.SPLIT, state)

    assert after(REFUSED, operation).reaction is Reaction.FINISH_WITHOUT
    assert after(REFUSED, operation, is_action_left_out=True).reaction is Reaction.DEFER
    assert after(UNAVAILABLE, operation).reaction is Reaction.DEFER


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [(DEADLINE_MS - 1, Reaction.DEFER), (DEADLINE_MS, Reaction.ABORT), (None, Reaction.DEFER)],
)
def test_what_no_deadline_ends_is_aborted_if_the_data_plane_is_away_after_it(
    now_ms: int | None, expected: Reaction
) -> None:
    operation = make_operation(OperationKind.SUBSCRIPTION_CREATE, OperationState.INTENDED)

    assert after(UNAVAILABLE, operation, now_ms=now_ms).reaction is expected
    assert after(UNAVAILABLE, INTENDED_SPLIT, now_ms=now_ms).reaction is Reaction.DEFER


@pytest.mark.parametrize("state", [OperationState.INTENDED, OperationState.PREPARED])
def test_the_undo_of_a_creation_waits_for_the_end_of_an_outage_unless_its_topic_is_deleted(
    state: OperationState,
) -> None:
    """Cursors that nobody reads would keep all later messages of the topic."""
    undo = make_operation(OperationKind.SUBSCRIPTION_DELETE, state, parameters={UNDOES: 6})

    assert after(UNAVAILABLE, undo, now_ms=DEADLINE_MS).reaction is Reaction.DEFER
    assert after(UNAVAILABLE, undo, now_ms=DEADLINE_MS, abort_requested=True).reaction is Reaction.ABORT
    assert after(REFUSED, undo).reaction is Reaction.ABORT


def test_the_next_attempt_comes_sooner_while_ranges_take_no_writes() -> None:
    error = DataPlaneUnavailable("no broker", 1.0)

    assert after(error, INTENDED_SPLIT) == (Reaction.DEFER, 1.0)
    assert after(error, FENCED_SPLIT) == (Reaction.DEFER, 0.1)
