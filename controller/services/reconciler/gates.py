"""Compares the gates of topics with their layout and with the data plane, and has the gate keeper put right what differs.

The remedies are rows: the keeper alone closes and opens gates of a live subscription, so that the two do not cross each other. The data
plane is asked first, and the rows are read afterwards under the subscription's lock.
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
    """What of a subscription's layout waits for ancestors, by segment, and what is unread at all."""

    logs: Mapping[int, str]
    unread: Collection[int]


def reconcile_gates(
    store: Store, planes: Mapping[str, DataPlane], topic_ids: Collection[int], *, dry_run: bool = False
) -> list[Finding]:
    """Return the gates that differ, of the topics that have gates. What cannot be looked at is logged and left to a later run.

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
        except SubscriptionNotFound:  # it was deleted meanwhile
            continue
    return findings


def _states(store: Store, plane: GatedDataPlane, key: SubscriptionKey) -> dict[Gate, GateState | None]:
    """Ask the data plane about the gates that are recorded as open, of segments with something to read."""
    with store.transaction() as tx:
        unread = _waiting(tx, key).unread
        recorded = [
            one
            for one in gates.gates_of(tx, key)
            if one.segment_id in unread and one.state is GateRecord.OPEN
        ]
    with ThreadPoolExecutor(PARALLEL_CALLS, thread_name_prefix="gates") as calls:
        found = calls.map(lambda one: plane.gate_state(one.backing_topic, key.name), recorded)
        return dict(zip(recorded, found, strict=True))


def _differences(
    tx: Connection,
    topic: str,
    key: SubscriptionKey,
    states: Mapping[Gate, GateState | None],
    *,
    dry_run: bool,
) -> Iterator[Finding]:
    """Yield the differences, and change the rows unless it is a dry run. The subscription is locked."""
    if seeks.under_way(tx, key) is not None:
        return
    waiting, recorded = _waiting(tx, key), {one.segment_id: one for one in gates.gates_of(tx, key)}
    unclosed = [i for i in waiting.logs if i not in recorded or recorded[i].state is GateRecord.OPEN]
    shut = [
        one.segment_id
        for one, state in states.items()
        if recorded.get(one.segment_id) == one
        and one.segment_id not in waiting.logs
        and state in (GateState.CLOSED, GateState.BREACHED)
    ]
    if not dry_run:
        gates.close(tx, key, unclosed)
        gates.reopen(tx, key, shut)
    for segment_id in unclosed:
        yield Finding(FindingKind.GATE_OPEN, topic, waiting.logs[segment_id], segment_id, key.name)
    for segment_id in shut:
        yield Finding(FindingKind.GATE_SHUT, topic, recorded[segment_id].backing_topic, segment_id, key.name)
    for one in recorded.values():
        if one.is_breached and one.state is GateRecord.CLOSED:
            yield Finding(FindingKind.GATE_BREACHED, topic, one.backing_topic, one.segment_id, key.name)


def _waiting(tx: Connection, key: SubscriptionKey) -> _Waiting:
    left = readable_segments.to_read(tx, key.topic_id, key.name)
    clear = drain_barrier.clear(left.layout, left.drained)
    logs = {i: left.backing_topics[i] for i in left.layout.segments if i not in clear}
    return _Waiting(logs, left.layout.segments.keys() - left.drained)
