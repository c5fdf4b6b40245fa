"""Reshapes of many topics moved on together: each act is one statement, however many operations it is for.

Beside ``operations`` and ``commits``, which move one operation one step: what those demand is demanded here of
each row (claim, term, state, noted subscriptions, a live topic), and a row that does not pass is left as it is, to
be looked at alone. Two steps share a transaction where nothing has to be known to be on disk between them; each
keeps its own row in the journal. Topic rows are locked before operation rows, both in the order of topic ids.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Row

from controller.clock import to_datetime, to_ms
from controller.domain.hash_range import HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Observed, Operation, OperationKind, OperationState, Step
from controller.domain.reshape import ReshapeKind
from controller.domain.segment import Segment
from controller.store.journal.commits import STAMPS
from controller.store.journal.reshape_statements import ANNOUNCE, CLAIM, CLAIM_IN_SHARDS, COMMIT, FINISH
from controller.store.journal.rows import operation_of
from controller.store.shards import Shards
from controller.store.topics.subscriptions import SubscriptionState


@dataclass(frozen=True, slots=True)
class Claimed:
    """An operation just claimed. ``layout`` holds a fresh reshape's parents alone; it is None for any other."""

    operation: Operation
    observed: Observed
    layout: SegmentLayout | None
    live_subscriptions: tuple[str, ...]
    ending_subscriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """What a statement is told about one operation; ``detail`` goes to the first step's row.

    ``subscription_version``: of the subscriptions that its children have.
    """

    operation: Operation
    subscription_version: int | None
    detail: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Committed:
    """``subscriptions``: every name recorded at the commit, those being deleted included."""

    epoch: int
    now_ms: int
    subscriptions: frozenset[str]


def claim(
    tx: Connection,
    *,
    runner: str,
    lease_seconds: float,
    call_timeout_seconds: float,
    limit: int,
    planes_together: Collection[str],
    planes_alone: Collection[str] = (),
    shards: Shards | None = None,
) -> list[Claimed]:
    """Claims fresh reshapes on ``planes_together`` and one other due operation, ``limit`` in all.

    Fresh: intended, never tried, nobody's, on a live topic. The other one may be such a reshape too, on one of
    ``planes_alone``; while any is past the announcement of its fence it is one of those. See ``operations.claim``.
    """
    parameters: dict[str, object] = {
        "runner": runner,
        "lease_seconds": lease_seconds,
        "call_timeout_seconds": call_timeout_seconds,
        "limit": limit,
        "kinds": [kind.value for kind in OperationKind],
        "reshapes": [kind.value for kind in ReshapeKind],
        "planes_together": list(planes_together),
        "planes_alone": list(planes_alone),
        "live": SubscriptionState.LIVE.value,
        **({} if shards is None else shards.parameters),
    }
    statement = CLAIM if shards is None else CLAIM_IN_SHARDS
    return [_claimed(row) for row in statement.execute(tx, parameters)]


def announce_fences(
    tx: Connection, given: Sequence[Given], runner: str, *, started_at_ms: int, may_be_late: bool
) -> dict[int, int]:
    """The children are made (step one) and the fences may fall (step two): operations to ``fencing``, in one commit.

    ``may_be_late``: the commit need not have reached the disk when this returns, because the logs to be closed are
    in the same server. Returns when (milliseconds since the epoch), by id of those that moved. The others' claim,
    topic or deadline has passed.
    """
    parameters = _parameters(given, runner, OperationState.INTENDED, started_at_ms) | {
        "first": Step.CREATE_CHILDREN.value,
        "second": Step.SET_FENCING.value,
        "may_be_late": may_be_late,
    }
    return {row.operation_id: to_ms(row.now) for row in ANNOUNCE.execute(tx, parameters)}


def commit(
    tx: Connection,
    given: Sequence[Given],
    children: Mapping[int, Sequence[Segment]],
    runner: str,
    *,
    started_at_ms: int,
) -> dict[int, Committed]:
    """The parents are closed (step one) and the layouts move (step two): operations to ``committed``, in one commit.

    At most one operation a topic. ``children`` by operation id; each detail holds the parents' ``positions``.
    Those whose claim or topic has moved on, or whose subscriptions are not as noted, are left out. Raises
    InvariantViolated when a law of some layout would break: then nothing was committed for any.
    """
    parameters = _parameters(given, runner, OperationState.FENCING, started_at_ms, children) | {
        "first": Step.TERMINATE_PARENTS.value,
        "second": Step.COMMIT.value,
        "topic_ids": [one.operation.topic_id for one in given],
    }
    return {
        row.operation_id: Committed(row.epoch, to_ms(row.now), frozenset(row.subscriptions))
        for row in COMMIT.execute(tx, parameters)
    }


def finish(tx: Connection, given: Sequence[Given], runner: str, *, started_at_ms: int) -> set[int]:
    """The operations are done; returns those that were still the runner's. Forgetting it costs a repetition only."""
    parameters = _parameters(given, runner, OperationState.COMMITTED, started_at_ms) | {
        "first": Step.FINISH.value,
        "operation_ids": [one.operation.operation_id for one in given],
    }
    return {row.operation_id for row in FINISH.execute(tx, parameters)}


def _parameters(
    given: Sequence[Given],
    runner: str,
    state: OperationState,
    started_at_ms: int,
    children: Mapping[int, Sequence[Segment]] = MappingProxyType({}),
) -> dict[str, object]:
    documents = [
        {
            "operation_id": one.operation.operation_id,
            "topic_id": one.operation.topic_id,
            "term": one.operation.claim_term,
            "subscription_version": one.subscription_version,
            "detail": one.detail,
            "stamps": STAMPS.get(one.operation.kind, ()),
            "children": [
                {
                    "segment_id": child.segment_id,
                    "merge_depth": child.merge_depth,
                    "parent_ids": child.parent_ids,
                }
                for child in children.get(one.operation.operation_id, ())
            ],
        }
        for one in given
    ]
    return {
        "given": json.dumps(documents),
        "runner": runner,
        "state": state.value,
        "started_at": to_datetime(started_at_ms),
    }


def _claimed(row: Row[Any]) -> Claimed:
    return Claimed(
        operation=operation_of(row),
        observed=Observed(to_ms(row.now), row.topic_subscription_version),
        layout=_layout_of_parents(row) if row.is_fresh else None,
        live_subscriptions=tuple(row.live_subscriptions),
        ending_subscriptions=tuple(row.ending_subscriptions),
    )


def _layout_of_parents(row: Row[Any]) -> SegmentLayout:
    parents = (
        Segment(
            segment_id,
            HashRange(start, end),
            parent_ids=tuple(parents),
            merge_depth=depth,
            bucket_splits=tuple(splits),
        )
        for segment_id, start, end, depth, splits, parents in row.parents
    )
    return SegmentLayout.from_segments(row.topic_epoch, row.next_segment_id, parents)
