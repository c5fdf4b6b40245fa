"""Compares the gates of topics with their layout and with the data plane, and records the differences for the gate keeper.

The reconciler changes rows only. The keeper alone calls the data plane to close and open the gates of a live subscription, so that the
two cannot undo each other's calls. The reconciler reads the state from the data plane first, and the rows afterwards, under the lock of
the subscription.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sqlalchemy import Connection

from controller import telemetry
from controller.dataplane.base import DataPlane
from controller.dataplane.gates import GatedDataPlane
from controller.domain import drain_barrier
from controller.domain.errors import CleaveError, StoreUnavailable, SubscriptionNotFound
from controller.domain.gates import GateState
from controller.services.reconciler.findings import Finding, FindingKind
from controller.store.journal import seeks
from controller.store.postgres.engine import Store
from controller.store.topics import bucket_owners, gates, readable_segments, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.store.topics.gates import Gate, GateRecord

log = telemetry.get_logger(__name__)

PARALLEL_CALLS = 8


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Segments of a subscription that wait for their ancestors, with their logs, and all unread segments."""

    logs: Mapping[int, str]
    unread: Collection[int]


def reconcile_gates(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Collection[int], *, dry_run: bool = False
) -> list[Finding]:
    """Return the gates of the topics that differ. A topic whose data plane does not answer is logged, and left to a later run.

    Raises StoreUnavailable.
    """
    with store.single_statement() as tx:
        with_gates = gates.topics_with_gates(tx, topic_ids)
    findings: list[Finding] = []
    for topic_id in with_gates:
        try:
            findings += _topic(store, planes, topic_id, dry_run=dry_run)
        except StoreUnavailable:
            raise
        except CleaveError as error:
            log.warning("gates not compared", topic_id=topic_id, error=str(error))
    return findings


def _topic(store: Store, planes: Mapping[str, DataPlane], topic_id: int, *, dry_run: bool) -> list[Finding]:
    with store.transaction() as tx:
        topic = topics.get_topic(tx, topic_id)
        names = gates.stock_subscriptions(tx, topic_id)
    plane = planes.get(topic.data_plane)
    if not isinstance(plane, GatedDataPlane):
        return []
    findings: list[Finding] = []
    for name in names:
        key = SubscriptionKey(topic_id, name)
        states = _states(store, plane, key)
        try:
            with store.transaction() as tx:
                bucket_owners.lock(tx, key)
                findings += _differences(tx, topic.name, key, states, dry_run=dry_run)
        except SubscriptionNotFound:  # the subscription was deleted meanwhile
            continue
    return findings


def _states(store: Store, plane: GatedDataPlane, key: SubscriptionKey) -> dict[Gate, GateState | None]:
    """Return the states, at the data plane, of the gates that are recorded as open on unread segments."""
    with store.transaction() as tx:
        unread = _waiting(tx, key).unread
        recorded = [
            gate
            for gate in gates.gates_of(tx, key)
            if gate.segment_id in unread and gate.state is GateRecord.OPEN
        ]
    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="gates") as calls:
        states = calls.map(lambda gate: plane.gate_state(gate.backing_topic, key.name), recorded)
        return dict(zip(recorded, states, strict=True))


def _differences(
    tx: Connection,
    topic: str,
    key: SubscriptionKey,
    states: Mapping[Gate, GateState | None],
    *,
    dry_run: bool,
) -> Iterator[Finding]:
    """Yield the differences, and correct the rows unless `dry_run`. The caller holds the lock of the subscription."""
    if seeks.under_way(tx, key) is not None:
        return
    waiting, recorded = _waiting(tx, key), {gate.segment_id: gate for gate in gates.gates_of(tx, key)}
    unclosed = [i for i in waiting.logs if i not in recorded or recorded[i].state is GateRecord.OPEN]
    shut = [
        gate.segment_id
        for gate, state in states.items()
        if recorded.get(gate.segment_id) == gate
        and gate.segment_id not in waiting.logs
        and state is not None
        and state.is_shut
    ]
    if not dry_run:
        gates.close(tx, key, unclosed)
        gates.reopen(tx, key, shut)
    for segment_id in unclosed:
        yield Finding(FindingKind.GATE_OPEN, topic, waiting.logs[segment_id], segment_id, key.name)
    for segment_id in shut:
        yield Finding(FindingKind.GATE_SHUT, topic, recorded[segment_id].backing_topic, segment_id, key.name)
    for gate in recorded.values():
        if gate.is_breached and gate.state is GateRecord.CLOSED:
            yield Finding(FindingKind.GATE_BREACHED, topic, gate.backing_topic, gate.segment_id, key.name)


def _waiting(tx: Connection, key: SubscriptionKey) -> _Waiting:
    left = readable_segments.to_read(tx, key.topic_id, key.name)
    clear = drain_barrier.clear(left.layout, left.drained)
    logs = {i: left.backing_topics[i] for i in left.layout.segments if i not in clear}
    return _Waiting(logs, left.layout.segments.keys() - left.drained)
