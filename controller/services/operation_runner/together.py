"""Fresh reshapes run step by step on a data plane that takes calls set-wise: several where they share calls, or one.

The same steps in the same order as `claimed` takes, for the price of one operation: children created, fences
announced, parents terminated, layouts moved, done. Whatever is out of the ordinary (a child found terminated, a
parent missing, subscriptions that changed meanwhile, a claim that runs short) is not handled here: the operation is
handed back as it is recorded and goes on alone, which every step allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sqlalchemy import Connection

from controller import telemetry
from controller.dataplane.base import DataPlane, LogState, SetWiseDataPlane, Successor
from controller.domain.errors import CleaveError, StoreUnavailable
from controller.domain.operation import MOVES, Operation, OperationKind, OperationState, Step, next_step
from controller.domain.segment import Segment
from controller.services.operation_runner.acts import subscriptions_noted
from controller.services.operation_runner.context import RunnerContext
from controller.store.journal import reshapes
from controller.store.journal.reshapes import Claimed, Given

log = telemetry.get_logger(__name__)

MOST_CURSORS = 500
"""Of all children of one operation: alone they are made child by child, each in a call with a time-out of its own."""
_STEPS = (Step.CREATE_CHILDREN, Step.SET_FENCING, Step.TERMINATE_PARENTS, Step.COMMIT, Step.FINISH)


def set_wise(plane: DataPlane) -> SetWiseDataPlane | None:
    """The plane, if it takes calls for many logs. By one of its names: a protocol's check looks at all of them."""
    return cast(SetWiseDataPlane, plane) if hasattr(plane, "create_successors") else None


def is_ordinary(claimed: Claimed) -> bool:
    """Whether the operation may run with others: the table gives it those steps, and nothing else is needed.

    Nor so many cursors that one call could not make them in time. The depth of a child of several parents depends on
    ancestors that are not read here, unless the parents are all there is of one split.
    """
    operation, layout = claimed.operation, claimed.layout
    if layout is None or operation.kind not in _ORDINARY_KINDS:
        return False
    if next_step(operation, claimed.observed)[0] is not Step.CREATE_CHILDREN:
        return False  # its time is up
    if len(operation.children) * len(claimed.live_subscriptions) > MOST_CURSORS:
        return False
    families = {segment.parent_ids for segment in layout.segments.values()}
    return len(operation.parent_ids) == 1 or (
        len(families) == 1 and all(len(parents) == 1 for parents in families)
    )


def _steps_of(kind: OperationKind) -> tuple[Step, ...]:
    moves, state, steps = MOVES[kind], OperationState.INTENDED, list[Step]()
    while state.is_live:
        step, state = moves[state]
        steps.append(step)
    return tuple(steps)


_ORDINARY_KINDS = frozenset(kind for kind in OperationKind if kind.is_reshape and _steps_of(kind) == _STEPS)


@dataclass(slots=True)
class _Member:
    """One of them: its claim, what was recorded since, and the subscriptions known to be on its children."""

    claimed: Claimed
    recorded: dict[str, Any] = field(default_factory=dict)
    subscriptions: frozenset[str] = frozenset()
    is_under_way: bool = True

    @property
    def operation(self) -> Operation:
        """As it was claimed."""
        return self.claimed.operation

    def given(self, detail: Mapping[str, object]) -> Given:
        """For a statement: its children have the subscriptions that were seen with the claim."""
        return Given(self.operation, self.claimed.observed.subscription_version, detail)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.recorded.get("state") is OperationState.DONE

    def children(self) -> list[Segment]:
        """The segments to be, with parents and depth; the epoch is for the commit to say."""
        if self.claimed.layout is None:
            raise ValueError(f"operation {self.operation.operation_id} is no fresh reshape")
        plans = [child.plan for child in self.operation.children]
        after = self.claimed.layout.reshape(self.operation.parent_ids, plans, 0)
        return [after.segment(plan.segment_id) for plan in plans]

    def successors(self) -> Iterator[Successor]:
        """Every subscription at earliest: those recorded and those found on the parents, but those that end."""
        for child in self.operation.children:
            yield Successor(
                child.backing_topic,
                self.operation.parent_topics,
                self.claimed.live_subscriptions,
                self.claimed.ending_subscriptions,
            )


class Together:
    """Some ordinary reshapes claimed at once, on one data plane."""

    def __init__(
        self,
        context: RunnerContext,
        plane: SetWiseDataPlane,
        claimed: Sequence[Claimed],
        claimed_until: float,
    ) -> None:
        self._context = context
        self._plane = plane
        self._members = {one.operation.operation_id: _Member(one) for one in claimed}
        self._claimed_until = claimed_until
        self._now_ms = max(one.observed.now_ms for one in claimed)

    def drive(self) -> CleaveError | None:
        """Run them to their ends; see `left` then. Returns what stopped them all. Raises StoreUnavailable."""
        try:
            for act in (self._create_and_announce, self._terminate_and_commit, self._finish):
                if self._under_way() and self._may_call():
                    act()
        except StoreUnavailable:
            raise
        except CleaveError as error:
            return error
        return None

    def left(self) -> list[Operation]:
        """Those that have to go on alone, as they are recorded."""
        as_recorded = (
            replace(one.operation, **one.recorded) for one in self._members.values() if not one.is_done
        )
        return list(as_recorded)

    def _under_way(self) -> list[_Member]:
        return [one for one in self._members.values() if one.is_under_way]

    def _may_call(self) -> bool:
        """Whether a call made now ends while the claims are ours: each act makes one, first of all."""
        left_seconds = self._claimed_until - self._context.clock.monotonic_seconds()
        return not self._context.should_stop() and left_seconds > self._context.call_timeout_seconds

    def _create_and_announce(self) -> None:
        """The call that makes the children says what they are, while giving up is still free."""
        made = self._plane.create_successors(
            [successor for one in self._under_way() for successor in one.successors()]
        )
        for one in self._under_way():
            born = [made.get(child.backing_topic) for child in one.operation.children]
            alive = [log for log in born if log is not None and log.state is LogState.OPEN]
            one.is_under_way = len(alive) == len(born)
            one.subscriptions = frozenset(name for log in alive for name in log.subscriptions)
        given = [
            one.given(subscriptions_noted(one.subscriptions, one.claimed.live_subscriptions))
            for one in self._under_way()
        ]
        with self._recording(Step.CREATE_CHILDREN, Step.SET_FENCING) as tx:
            moved = reshapes.announce_fences(
                tx,
                given,
                self._context.runner_id,
                started_at_ms=self._now_ms,
                may_be_late=self._plane.shares_server,
            )
            self._keep(given, moved, OperationState.FENCING)
        for number in moved:
            one = self._members[number]
            one.recorded["subscription_version"] = one.claimed.observed.subscription_version
        self._now_ms = max(moved.values(), default=self._now_ms)

    def _terminate_and_commit(self) -> None:
        """The fences, all at once, then the layouts; operations of one topic follow one another."""
        parents = [log for one in self._under_way() for log in one.operation.parent_topics]
        positions = self._plane.terminate_segments(parents)
        for one in self._under_way():
            one.is_under_way = all(log in positions for log in one.operation.parent_topics)
        for turn in _one_a_topic(self._under_way()):
            given = [
                one.given({"positions": {log: positions[log] for log in one.operation.parent_topics}})
                for one in turn
            ]
            children = {one.operation.operation_id: one.children() for one in turn}
            with self._recording(Step.TERMINATE_PARENTS, Step.COMMIT) as tx:
                committed = reshapes.commit(
                    tx, given, children, self._context.runner_id, started_at_ms=self._now_ms
                )
                self._keep(given, committed, OperationState.COMMITTED)
            for number, seen in committed.items():
                one = self._members[number]
                one.recorded["epoch"] = seen.epoch
                one.subscriptions |= seen.subscriptions
                self._now_ms = max(self._now_ms, seen.now_ms)

    def _finish(self) -> None:
        """Done, unless an application subscribed on a parent meanwhile: those cursors are made alone."""
        parents = [log for one in self._under_way() for log in one.operation.parent_topics]
        found = self._plane.subscriptions_of(parents)
        for one in self._under_way():
            names = {name for log in one.operation.parent_topics for name in found.get(log, ())}
            one.is_under_way = names <= one.subscriptions
        given = [one.given({}) for one in self._under_way()]
        with self._recording(Step.FINISH) as tx:
            ended = reshapes.finish(tx, given, self._context.runner_id, started_at_ms=self._now_ms)
            self._keep(given, ended, OperationState.DONE)
        for number in ended:
            operation = self._members[number].operation
            telemetry.OPERATIONS.labels(operation.kind, operation.origin, OperationState.DONE).inc()
        log.info("operations ended", operations=sorted(ended), state=OperationState.DONE)

    @contextmanager
    def _recording(self, *steps: Step) -> Iterator[Connection]:
        for step in steps:
            self._context.checkpoint(f"{step}:before")
        with self._context.store.single_statement() as tx:
            yield tx
        for step in steps:
            self._context.checkpoint(f"{step}:after")

    def _keep(self, given: Sequence[Given], moved: Collection[int], state: OperationState) -> None:
        """Those that moved are in that state; the others go on alone."""
        for operation in (one.operation for one in given):
            member = self._members[operation.operation_id]
            member.is_under_way = operation.operation_id in moved
            if member.is_under_way:
                member.recorded |= {"state": state, "attempts": 0}


def _one_a_topic(members: Sequence[_Member]) -> Iterator[list[_Member]]:
    """Turns in which no topic comes twice, since each has an epoch of its own."""
    waiting = list(members)
    while waiting:
        turn = {one.operation.topic_id: one for one in reversed(waiting)}
        yield list(turn.values())
        waiting = [one for one in waiting if one is not turn[one.operation.topic_id]]
