"""What must hold when the dust has settled, whatever was done to an operation's runner, data plane or logs."""

from __future__ import annotations

from typing import Any

from controller.domain.operation import Operation, OperationKind, OperationState
from controller.domain.operation_steps import Step
from controller.services.operation_runner.backoff import LONGEST_DELAY_SECONDS
from tests.chaos.scenarios import MESSAGES, OWN_CURSOR, Scenario
from tests.support.bench import Bench

STEPS_BEHIND_FENCE = (Step.TERMINATE_PARENTS, Step.SYNC_SUBSCRIPTIONS, Step.COMMIT)
# what somebody else has closed is counted from the operation's own fence
_UNWRITABLE_MS = """
    SELECT coalesce(max(extract(epoch FROM o.committed_at - greatest(l.terminated_at,
             CASE o.kind WHEN 'heal' THEN coalesce(o.fenced_at, o.committed_at) END)) * 1000), 0)::bigint
      FROM cleave.operation o
      JOIN cleave.operation_parent p USING (operation_id)
      JOIN cleave.segment s ON s.topic_id = p.topic_id AND s.segment_id = p.segment_id
      JOIN embedded.log l ON l.name = s.backing_topic
     WHERE o.operation_id = :operation_id AND s.pruned_epoch IS NULL
"""
_UNWRITABLE_MS_AT_MOST = """
    SELECT coalesce(max(extract(epoch FROM o.committed_at - s.finished_at)) * 1000, 0)::bigint
      FROM cleave.operation o JOIN cleave.operation_step s USING (operation_id)
     WHERE o.operation_id = :operation_id AND s.step = 'set-fencing'
"""
_REUSED = """
    SELECT count(*) FROM cleave.operation o JOIN cleave.operation_child c USING (operation_id)
      JOIN cleave.segment s ON s.topic_id = c.topic_id AND s.segment_id = c.segment_id
     WHERE o.state = 'aborted'
"""
_CHANGES = "SELECT count(*) FROM cleave.layout_change WHERE operation_id = :operation_id"
_BY_KEY = "SELECT count(*) FROM cleave.operation WHERE request_key = :key"


def settle_and_check(
    bench: Bench,
    scenario: Scenario,
    operation_id: int,
    *,
    away_seconds: float | None = None,
    messages_survive: bool = True,
    collects: bool = False,
) -> dict[str, Any]:
    """Let everything end, check every law, and return the columns of the table that are known by then.

    `away_seconds`: how long the fault kept everybody from going on, beside what `deadline_seconds` allows for; a
    takeover where None.
    `messages_survive` False: a person has deleted a log with messages in it, and cursors nobody else knew of.
    """
    operation = bench.operation(operation_id)
    unwritable_ms = unwritable_ms_of(bench, operation_id)
    findings = bench.settle(collects=collects)
    bench.check_laws()
    assert not operation.state.is_live
    check_writable(bench, unwritable_ms, takeover_seconds(bench) if away_seconds is None else away_seconds)
    assert bench.scalar(_REUSED) == 0
    assert bench.scalar(_BY_KEY, key=operation.request_key) == 1
    _check_history(bench, scenario, operation, knows_cursors=messages_survive)
    if messages_survive and (scenario.keeps_messages or operation.state is OperationState.ABORTED):
        first_logs = bench.scalar(
            "SELECT count(*) FROM cleave.segment WHERE topic_id = :id AND created_epoch = 0",
            id=bench.topic_id,
        )
        was_given_up = operation.kind is OperationKind.SEEK and operation.state is OperationState.ABORTED
        # A seek begins with everything read, and is to have it read again.
        assert bench.unread("billing") == (0 if was_given_up else MESSAGES * first_logs)
    return {
        "plane": bench.plane.name,
        "ended": str(operation.state),
        "findings": len(findings),
        "unwritable_ms": unwritable_ms,
    }


def deadline_seconds(bench: Bench) -> float:
    """What a runner needs from a fence to the commit at most: each step there fails once, and waits the longest."""
    return len(STEPS_BEHIND_FENCE) * (bench.call_timeout_seconds + LONGEST_DELAY_SECONDS)


def takeover_seconds(bench: Bench) -> float:
    """From a runner's death to the next one's claim: the dead one's runs out, and its last call is over."""
    return bench.lease_seconds + bench.call_timeout_seconds


def check_writable(bench: Bench, unwritable_ms: float, away_seconds: float) -> None:
    """No range is without a writable log for longer than it was kept from going on, and the deadline, together."""
    assert unwritable_ms <= (away_seconds + deadline_seconds(bench)) * 1000


def unwritable_ms_of(bench: Bench, operation_id: int) -> int:
    """How long the operation kept its range without a writable log.

    The embedded logs say when they were terminated. A broker does not, so there it is counted from the journal's
    `set-fencing`, before which nothing may be terminated: never less than the truth, and more by what lies between
    that row and the termination, a killed runner's takeover included.
    """
    statement = _UNWRITABLE_MS if bench.pulsar is None else _UNWRITABLE_MS_AT_MOST
    return int(bench.scalar(statement, operation_id=operation_id))


def _check_history(bench: Bench, scenario: Scenario, operation: Operation, *, knows_cursors: bool) -> None:
    """One epoch for what changed the layout, none for what gave up; children carry cursors nobody recorded."""
    changes_layout = "subscription" not in scenario.name and operation.state is OperationState.DONE
    epochs = (
        2 if operation.kind is OperationKind.ADOPT else 1
    )  # the topic as it was found, and what follows it
    assert bench.scalar(_CHANGES, operation_id=operation.operation_id) == epochs * int(changes_layout)
    if operation.kind.succeeds_logs and operation.state is OperationState.DONE:
        layout = bench.layout
        for child in operation.children:
            assert child.plan.segment_id in layout.segments
            assert not knows_cursors or OWN_CURSOR in bench.plane.list_subscriptions(child.backing_topic)
