"""Decides what happens to an operation after a failed step: the step is tried again, the operation is aborted, deferred
or finished without its last action, or the runner leaves it.

An operation is aborted only while it can be given up (`can_give_up`). After its fence is announced, errors lead to
another attempt. `backoff` computes the delays, and `operation_set` does what is decided here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from controller.domain.errors import CleaveError, DataPlaneUnavailable, FencedOut, LostRace, Terminal
from controller.domain.next_step import NOT_ABORTABLE, Observed, can_give_up
from controller.domain.operation import UNDOES, Operation, OperationState
from controller.services.operation_runner import backoff


class Reaction(StrEnum):
    """What the runner does with an operation after an error."""

    LEAVE = "leave"
    """End the run for this operation: its claim is lost."""
    TRY_AGAIN = "try-again"
    """Try the step again after a pause, under the same claim."""
    ABORT = "abort"
    """Make the abort the next step."""
    FINISH_WITHOUT = "finish-without"
    """Finish without the last action. The journal records the action that is left out."""
    DEFER = "defer"
    """Record the error and release the claim until the next attempt is due."""


class AfterFailure(NamedTuple):
    """The reaction to an error, and the seconds until the step is tried again or the next attempt is due; 0 for the
    other reactions.
    """

    reaction: Reaction
    delay_seconds: float = 0.0


def after_failure(
    error: CleaveError,
    operation: Operation,
    last_observation: Observed | None,
    call_timeout_seconds: float,
    *,
    lost_races: int,
    is_aborted_next: bool,
    is_action_left_out: bool,
) -> AfterFailure:
    """Return the reaction of the runner to the error of a step, with the delay in seconds. Changes nothing.

    FencedOut: LEAVE. A LostRace (HeldUp included): TRY_AGAIN, unless this is at least the `LOST_RACES_IN_A_ROW`th
    lost race in a row, which is treated like any other error. An error that makes another attempt useless
    (`_is_final`): ABORT if the operation can still be given up (`can_give_up`) and `is_aborted_next` is False. A
    Terminal error in state COMMITTED or ABORTING, in which only the last action is missing: FINISH_WITHOUT, unless
    `is_action_left_out` is True. Any other error: DEFER.

    `last_observation`: None if the operation was not observed since its last step. `call_timeout_seconds`: time-out
    of a data-plane call, and the minimum delay after DataPlaneTimeout. `lost_races`: number of consecutive lost races
    before this error. `is_aborted_next`: an earlier error already made the abort the next step. `is_action_left_out`:
    an earlier error already made the operation finish without its last action.
    """
    if isinstance(error, FencedOut):
        return AfterFailure(Reaction.LEAVE)
    if isinstance(error, LostRace) and lost_races + 1 < backoff.LOST_RACES_IN_A_ROW:
        return AfterFailure(Reaction.TRY_AGAIN, backoff.pause_seconds(error.delay_seconds, lost_races + 1))
    may_abort = not is_aborted_next and can_give_up(operation, last_observation)
    if may_abort and _is_final(error, operation, last_observation):
        return AfterFailure(Reaction.ABORT)
    if isinstance(error, Terminal) and _is_at_last_action(operation) and not is_action_left_out:
        return AfterFailure(Reaction.FINISH_WITHOUT)
    delay_seconds = backoff.delay_seconds(
        error, operation.attempts, call_timeout_seconds, is_closed=_is_closed(operation)
    )
    return AfterFailure(Reaction.DEFER, delay_seconds)


def _is_final(error: CleaveError, operation: Operation, last_observation: Observed | None) -> bool:
    """Return True if another attempt is useless. This is the case after any Terminal error. It is also the case after
    DataPlaneUnavailable if the kind of the operation is in `NOT_ABORTABLE` (no deadline ends such an operation while
    it waits) and its deadline has passed at `last_observation`. Without `last_observation`, the deadline counts as
    not passed. A deletion that undoes a creation waits for the data plane, unless its topic is being deleted.
    """
    if isinstance(error, Terminal):
        return True
    if last_observation is None or operation.kind not in NOT_ABORTABLE:
        return False
    is_late = last_observation.now_ms >= operation.deadline_at_ms
    # Cursors that an undo would leave have no reader, so the segments of the topic would be kept for ever.
    is_needed = UNDOES in operation.parameters and not last_observation.abort_requested
    return is_late and not is_needed and isinstance(error, DataPlaneUnavailable)


def _is_at_last_action(operation: Operation) -> bool:
    """Return True if only the last action is missing: the operation is committed or being aborted."""
    return operation.state in (OperationState.COMMITTED, OperationState.ABORTING)


def _is_closed(operation: Operation) -> bool:
    """Return True if ranges may have no log that accepts writes until the operation commits."""
    return operation.state in (OperationState.FENCING, OperationState.FENCED) and operation.kind.succeeds_logs
