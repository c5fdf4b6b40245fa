"""Compares the gates of topics with their layout and with the data plane, and records the differences for the gate keeper.

The reconciler changes rows only. The keeper alone calls the data plane to close and open the gates of a live subscription, so that the
two cannot undo each other's calls. The reconciler reads the state from the data plane first, and the rows afterwards, under the lock of
the subscription.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Connection

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.domain import drain_barrier
from controller.domain.errors import SubscriptionNotFound
from controller.domain.gate_states import GateState
from controller.services.reconciler.log_differences import Finding, FindingKind
from controller.services.reconciler.topic_by_topic import compare_each
from controller.store.journal import seeks
from controller.store.postgres.engine import Store
from controller.store.topics import bucket_owners, gates, readable_segments, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.gates import Gate, GateRecord

log = telemetry.get_logger(__name__)

PARALLEL_CALLS = 8


def reconcile_gates(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Collection[int], *, dry_run: bool = False
) -> list[Finding]:
    """Compare the recorded gates of the topics with the layout and the data plane, and correct the rows, so that the
    gate keeper closes or opens the gates. A dry run only compares. Return the differences. Topics without a row of a
    gate are not compared. A topic whose data plane has no gates, or is not configured here, has no differences.

    If the comparison of a topic fails, for example because its data plane does not answer or the topic is gone, the
    error is logged, the topic has no findings, and a later run compares it again. After an unexpected error the topic
    is also recorded in the view `inspect.set_aside`, except in a dry run. Raises StoreUnavailable, and the errors of
    the statements outside the comparisons.
    """
    with_gates = store.in_single_statement(gates.topics_with_gates, topic_ids)
    return compare_each(
        store,
        with_gates,
        lambda topic_id: _topic(store, planes, topic_id, dry_run=dry_run),
        failure="gates not compared",
        dry_run=dry_run,
    )


def _topic(store: Store, planes: Mapping[str, DataPlane], topic_id: int, *, dry_run: bool) -> list[Finding]:
    """Compare the gates of the topic's live subscriptions of standard consumers, each in a transaction of its own,
    and correct the rows unless `dry_run`. Return the differences; empty if the data plane has no gates or is not
    configured here. A subscription that is deleted in the meantime is skipped. Raises TopicNotFound, the errors of
    the data plane, and the errors of `Store.transaction`; corrections of earlier subscriptions stay.
    """
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id)
        names = gates.stock_subscriptions(tx, topic_id)
    plane = planes.get(topic.data_plane)
    if not isinstance(plane, GatedDataPlane):
        return []
    findings: list[Finding] = []
    for name in names:
        key = SubscriptionKey(topic_id, name)
        try:
            states = _states(store, plane, key)
            with store.transaction() as tx:
                bucket_owners.lock(tx, key)
                findings += _differences(tx, topic.name, key, states, dry_run=dry_run)
        except SubscriptionNotFound:  # the subscription was deleted meanwhile
            continue
    return findings


def _states(store: Store, plane: GatedDataPlane, key: SubscriptionKey) -> dict[Gate, GateState | None]:
    """Ask the data plane for the states of those gates that are recorded as open and whose segments the subscription
    has not drained. Return the states by gate; None for a gate whose log or cursor does not exist. Up to
    `PARALLEL_CALLS` calls run at a time. Raises SubscriptionNotFound, the errors of the data plane, and the errors of
    `Store.transaction`.
    """
    with store.transaction() as tx:
        to_read = readable_segments.to_read(tx, key.topic_id, key.name)
        unread = to_read.layout.segments.keys() - to_read.drained
        recorded_gates = [
            gate
            for gate in gates.gates_of(tx, key)
            if gate.segment_id in unread and gate.state is GateRecord.OPEN
        ]
    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="gates") as calls:
        states = calls.map(lambda gate: plane.gate_state(gate.backing_topic, key.name), recorded_gates)
        return dict(zip(recorded_gates, states, strict=True))


def _differences(
    tx: Connection,
    topic: str,
    key: SubscriptionKey,
    states: Mapping[Gate, GateState | None],
    *,
    dry_run: bool,
) -> Iterator[Finding]:
    """Yield the differences of the subscription's gates, and correct the rows before the first one is yielded, unless
    `dry_run`. GATE_OPEN: a segment that waits for its ancestors has no gate or an open gate; the row becomes closed.
    GATE_SHUT: the gate of a segment that need not wait is shut at the data plane, but recorded as open; the row
    becomes ready, so that the gate keeper opens the gate. GATE_BREACHED: the barrier of a closed gate is
    acknowledged; no row changes.

    `states` are the result of `_states`; a gate whose row has changed since is not compared with its state. Yields
    nothing, and corrects nothing, while a seek of the subscription is in progress. The caller holds the lock of the
    subscription. Raises SubscriptionNotFound.
    """
    if seeks.under_way(tx, key) is not None:
        return
    waiting, recorded = _waiting(tx, key), {gate.segment_id: gate for gate in gates.gates_of(tx, key)}
    unclosed_ids = [i for i in waiting if i not in recorded or recorded[i].state is GateRecord.OPEN]
    shut_ids = [
        gate.segment_id
        for gate, state in states.items()
        if recorded.get(gate.segment_id) == gate
        and gate.segment_id not in waiting
        and state is not None
        and state.is_shut
    ]
    if not dry_run:
        gates.close(tx, key, unclosed_ids)
        gates.reopen(tx, key, shut_ids)
    for segment_id in unclosed_ids:
        yield Finding(FindingKind.GATE_OPEN, topic, waiting[segment_id], segment_id, key.name)
    for segment_id in shut_ids:
        yield Finding(FindingKind.GATE_SHUT, topic, recorded[segment_id].backing_topic, segment_id, key.name)
    for gate in recorded.values():
        if gate.is_breached and gate.state is GateRecord.CLOSED:
            yield Finding(FindingKind.GATE_BREACHED, topic, gate.backing_topic, gate.segment_id, key.name)


def _waiting(tx: Connection, key: SubscriptionKey) -> dict[int, str]:
    """Return the logs of the subscription's segments that wait for their ancestors, by segment id. Raises
    SubscriptionNotFound.
    """
    to_read = readable_segments.to_read(tx, key.topic_id, key.name)
    readable_ids = drain_barrier.clear(to_read.layout, to_read.drained)
    return {
        segment_id: to_read.backing_topics[segment_id]
        for segment_id in to_read.layout.segments
        if segment_id not in readable_ids
    }
