"""What a cell of the kill matrix acts on: for each kind of operation a topic made ready, and the operation intended.

A scenario is a name, a kind and two functions: `prepare` brings the topic to where the operation can be asked for,
`intend` asks for it under a request key (twice under the same key: once).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.domain.operation import OperationKind
from controller.domain.seek_target import EARLIEST
from controller.services import segment_admin, subscription_admin, topic_admin
from controller.services.garbage_collector import collect
from controller.services.reconciler import FindingKind, reconcile
from controller.store.journal.adoptions import Adoption, intend_adopt
from controller.store.journal.operations import get_operation
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import Bench

OWN_CURSOR = "application-own"
"""A subscription that an application made directly on the first log: no row, but its data counts as well."""
MESSAGES = 3
"""In each first log, unread by the subscription `billing`."""


@dataclass(frozen=True)
class Scenario:
    """One way to have an operation of a kind; `intend` returns its id."""

    name: str
    kind: OperationKind
    prepare: Callable[[Bench], None]
    intend: Callable[[Bench, str], int]
    keeps_messages: bool = True


def a_topic(segments: int) -> Callable[[Bench], None]:
    """A live topic with unread messages and a cursor nobody recorded."""

    def prepare(bench: Bench) -> None:
        bench.topic_with(segments)
        bench.plane.create_subscription(bench.log_of(0), OWN_CURSOR)
        for segment_id in range(segments):
            bench.publish(segment_id, MESSAGES)

    return prepare


def reshaping(planner: segment_admin.Planner) -> Callable[[Bench, str], int]:
    """Intend a manual reshape."""
    return lambda bench, key: bench.intend(planner, bench.request(key)).operation.operation_id


def creating(bench: Bench, key: str) -> int:
    """Intend a topic of two segments."""
    request = bench.request(key)
    return topic_admin.create_topic(
        bench.store, bench.planes, bench.topic_name, request, data_plane=bench.plane.name, segments=2
    ).operation.operation_id


def two_plain_logs(bench: Bench) -> None:
    """Logs that applications made before there was a topic, with something unread."""
    for name in bench.plain_logs():
        bench.plane.create_segment(name, ["billing", OWN_CURSOR])


def adopting(bench: Bench, key: str) -> int:
    """Intend a topic of two segments that follows them."""
    adoption = Adoption(
        name=bench.topic_name,
        data_plane=bench.plane.name,
        old_topics=bench.plain_logs(),
        subscriptions={"billing": SubscriptionKind.STREAM},
        segments=2,
        bucket_budget=4,
        max_buckets=16,
    )
    with bench.store.transaction() as tx:
        intent = intend_adopt(
            tx, adoption, backing_topic=bench.plane.backing_topic, request=bench.request(key)
        )
    return intent.operation.operation_id


def deleting(bench: Bench, key: str) -> int:
    """Intend the topic's deletion."""
    return topic_admin.delete_topic(bench.store, bench.topic_name, bench.request(key)).operation.operation_id


def subscribing(bench: Bench, key: str) -> int:
    """Intend another subscription."""
    request = bench.request(key)
    return subscription_admin.create_subscription(
        bench.store, bench.topic_name, "audit", request
    ).operation.operation_id


def unsubscribing(bench: Bench, key: str) -> int:
    """Intend the deletion of the subscription that has unread messages."""
    request = bench.request(key)
    return subscription_admin.delete_subscription(
        bench.store, bench.topic_name, "billing", request
    ).operation.operation_id


def a_drained_parent(bench: Bench) -> None:
    """A topic after a split, its parent read to the end by everybody."""
    a_topic(1)(bench)
    bench.reshape(segment_admin.splitting(0))
    for name in bench.plane.list_subscriptions(bench.log_of(0)):
        bench.plane.skip_all(bench.log_of(0), name)


def seeking(bench: Bench, key: str) -> int:
    """Intend that the subscription begins again, the sealed parent included."""
    return subscription_admin.seek_subscription(
        bench.store, bench.topic_name, "billing", EARLIEST, bench.request(key), release_seconds=1.0
    ).operation.operation_id


def pruning(bench: Bench, _key: str) -> int:
    """Have the garbage collector intend it; its key follows from what it collects."""
    [operation_id] = collect(bench.store, bench.planes, retention_minutes=0).operation_ids or [
        one.operation_id for one in bench.live_operations()
    ]
    return operation_id


def a_broken_log(bench: Bench) -> None:
    """A topic one of whose active logs somebody terminated."""
    a_topic(1)(bench)
    bench.plane.terminate_segment(bench.log_of(0))


def healing(bench: Bench, _key: str) -> int:
    """Have the reconciler intend it, once: while it lives the segment is left alone."""
    for finding in reconcile(bench.store, bench.looking, bench.topic_id):
        if finding.kind is FindingKind.ACTIVE_TERMINATED and finding.operation_id is not None:
            return finding.operation_id
    return bench.live_operations()[0].operation_id


SCENARIOS = (
    Scenario("create", OperationKind.CREATE, lambda bench: None, creating, keeps_messages=False),
    Scenario("adopt", OperationKind.ADOPT, two_plain_logs, adopting, keeps_messages=False),
    Scenario("split", OperationKind.SPLIT, a_topic(1), reshaping(segment_admin.splitting(0))),
    Scenario("split-4", OperationKind.SPLIT, a_topic(2), reshaping(segment_admin.splitting(0, parts=4))),
    Scenario("merge", OperationKind.MERGE, a_topic(2), reshaping(segment_admin.merging(1, 0))),
    Scenario("rebucket", OperationKind.REBUCKET, a_topic(1), reshaping(segment_admin.rebucketing(0, 8))),
    Scenario(
        "recut", OperationKind.RECUT, a_topic(2), reshaping(segment_admin.recutting([0, 1], [9000, 40000]))
    ),
    Scenario("heal", OperationKind.HEAL, a_broken_log, healing),
    Scenario("prune", OperationKind.PRUNE, a_drained_parent, pruning, keeps_messages=False),
    Scenario("delete", OperationKind.DELETE, a_topic(2), deleting, keeps_messages=False),
    Scenario("subscription-create", OperationKind.SUBSCRIPTION_CREATE, a_topic(2), subscribing),
    Scenario(
        "subscription-delete",
        OperationKind.SUBSCRIPTION_DELETE,
        a_topic(2),
        unsubscribing,
        keeps_messages=False,
    ),
    Scenario("subscription-seek", OperationKind.SEEK, a_drained_parent, seeking),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def operation_of(bench: Bench, operation_id: int) -> OperationKind:
    """Kind of the operation, to make sure that a scenario is what it says."""
    with bench.store.transaction() as tx:
        return get_operation(tx, operation_id).kind
