"""Adopts an existing topic: inspects it, refuses to disconnect clients, and intends to take the topic over.

The old topic's logs become the sealed first generation of a scalable topic and stay where they are. Until
these logs are terminated, deleting the new topic undoes the adoption. Afterwards the broker refuses producers
of the old name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.dataplane.base import DataPlane
from controller.dataplane.optional_abilities import Adoptable, TopicDescription
from controller.dataplane.registry import demand_subscription
from controller.domain.errors import Conflict, InvalidInput, Unsupported
from controller.domain.names import demand_name
from controller.domain.operation import ADOPTED, STOCK
from controller.domain.pulsar_names import partitioned_topic_of
from controller.store.journal import adoptions, request_keys
from controller.store.journal.adoptions import Adoption
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.topics import policies
from controller.store.topics.subscriptions import SubscriptionKind

_NAMED_CONNECTIONS = 5
"""Maximum number of connections that a refusal names; the dry run names all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Result that adopting a topic would have. `topic` is the new name, `found` describes the old topic, and
    `segments` is the number of segments to create.
    """

    topic: str
    found: TopicDescription
    segments: int
    unserved: Mapping[str, str]
    """Subscriptions whose names no consumer of Cleave can use, and the reasons."""

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons why the topic cannot be adopted without disconnecting clients, one sentence each."""
        live = {"producer": self.found.producers, "consumer": self.found.consumers}
        return tuple(_connections_text(kind, names) for kind, names in live.items() if names)


def plan(
    planes: Mapping[str, DataPlane],
    old: str,
    *,
    topic: str | None = None,
    segments: int | None = None,
    data_plane: str = "pulsar",
) -> Plan:
    """Inspect the old topic on the data plane, and return the plan of its adoption: under the name `topic` (None: the
    old name), with `segments` segments (None: one for each old log). Changes nothing. Connected clients and
    subscriptions that cannot be served are no errors here, but part of the plan. Whether the new name is free and
    valid, and the maximum number of segments, are checked in `adopt`.

    Raises TopicNotFound; InvalidInput for `segments` below 1, or for an old topic that is not persistent, is a single
    partition or has too many partitions; Conflict if a log of the old topic is already terminated; Unsupported if the
    data plane is not configured here or has no topics to adopt; and the other errors of `describe_topic`, such as
    DataPlaneUnavailable.
    """
    plane = planes.get(data_plane)
    if not isinstance(plane, Adoptable):
        raise Unsupported(
            f"data plane {data_plane!r} has no topics to adopt here; set CLEAVE_PULSAR_ADMIN_URL and choose pulsar"
        )
    old_topic = plane.describe_topic(old)
    if old_topic.terminated:
        raise Conflict(
            f"{old_topic.terminated[0]} is already terminated, so no log can follow it in order; adopt an open topic"
        )
    if segments is not None and segments < 1:
        raise InvalidInput(f"segments must be at least 1, not {segments}")
    return Plan(
        topic or f"topic://{old_topic.name.removeprefix('persistent://')}",
        old_topic,
        segments or len(old_topic.logs),
        _unreadable_subscriptions(old_topic.subscriptions, data_plane),
    )


def adopt(
    store: Store,
    planes: Mapping[str, DataPlane],
    planned: Plan,
    request: Request,
    *,
    data_plane: str = "pulsar",
    cut_off: bool = False,
    stock_subscriptions: Collection[str] = (),
) -> Intent:
    """Insert the topic and its subscriptions, and write and return the intent of the planned adoption; the operation
    runner performs the adoption later. The data plane is not called, so the plan is used as it was made. Standard
    consumers continue to read the subscriptions in `stock_subscriptions`, behind gates; the caller checks that the
    data plane has gates. `cut_off` permits connected clients: the broker then notifies them that the topic has ended.
    A repeated request key returns its first intent, but only if the checks of connected clients and subscriptions
    pass.

    Raises Conflict, with the names of connected clients, if there are any and `cut_off` is False, or if the request
    key was used for another request, of which only `cut_off` may differ. Raises TopicExists; LostRace if another
    topic used the name in the meantime; InvalidInput for an invalid name or number of segments, or for a name in `stock_subscriptions` that
    does not exist or is read as a queue; and the errors of `Store.transaction`. Also raises InvalidInput for
    subscriptions that no consumer of Cleave can read, because their messages would never be read. A dry run, whose
    store rolls back each transaction, leaves such subscriptions out instead.
    """
    if planned.unserved and not store.rolls_back:
        raise InvalidInput(
            f"{planned.found.name} has subscriptions that no consumer of Cleave can read: {'; '.join(planned.unserved.values())}. "
            "Delete them first, or have their applications subscribe under other names"
        )
    if planned.obstacles and not cut_off:
        raise Conflict(
            f"{planned.found.name} is in use: {'; '.join(planned.obstacles)}. Stop these clients first, or cut them off"
        )
    _demand_in_order(planned, stock_subscriptions)
    kinds = {
        name: SubscriptionKind.QUEUE if is_queue else SubscriptionKind.STREAM
        for name, is_queue in planned.found.subscriptions.items()
        if name not in planned.unserved
    }
    with store.transaction() as tx:
        cluster_policy = policies.get_cluster(tx)
        adoption = Adoption(
            name=planned.topic,
            data_plane=data_plane,
            old_topics=planned.found.logs,
            subscriptions=kinds,
            segments=planned.segments,
            bucket_budget=cluster_policy.entry_bucket_budget,
            max_buckets=cluster_policy.entry_bucket_max_per_segment,
            stock=frozenset(stock_subscriptions) & kinds.keys(),
        )
        return adoptions.intend_adopt(
            tx, adoption, backing_topic=planes[data_plane].backing_topic, request=request
        )


def demand_same(
    earlier: Intent,
    old: str,
    *,
    segments: int | None,
    data_plane: str,
    stock_subscriptions: Collection[str],
) -> None:
    """Raise Conflict if `earlier`, the adoption of an earlier request with the same key, took over another topic than
    `old`, or has another number of segments (None: one for each old log), data plane or stock subscriptions. The old
    topic is not read, because the adoption may have terminated its logs.
    """
    logs = list(earlier.operation.fenced_topics)
    name = partitioned_topic_of(old)
    adopted = logs if name == partitioned_topic_of(logs[0]) else [name]
    request_keys.demand_same(
        earlier,
        data_plane=data_plane,
        segments=segments or len(logs),
        **{ADOPTED: adopted, STOCK: sorted({*stock_subscriptions})},
    )


def _demand_in_order(planned: Plan, stock_subscriptions: Collection[str]) -> None:
    """Raise InvalidInput for a subscription in `stock_subscriptions` that does not exist on the old topic or
    is read as a queue, because gates keep no order for a queue.
    """
    for name in sorted(stock_subscriptions):
        if planned.found.subscriptions.get(name, True):
            problem = "is read as a queue" if name in planned.found.subscriptions else "does not exist"
            raise InvalidInput(
                f"subscription {name} of {planned.found.name} {problem}; name subscriptions of type Failover or Exclusive, which gates keep in order"
            )


def _unreadable_subscriptions(names: Iterable[str], data_plane: str) -> dict[str, str]:
    """Return the subscriptions whose names no consumer of Cleave can use, with the reasons."""
    reasons_by_name = {}
    for name in sorted(names):
        try:
            demand_subscription(data_plane, demand_name("subscription", name))
        except InvalidInput as error:
            reasons_by_name[name] = error.message
    return reasons_by_name


def _connections_text(kind: str, names: tuple[str, ...]) -> str:
    """Return the connections of one kind as text, with at most `_NAMED_CONNECTIONS` names."""
    rest = f" and {len(names) - _NAMED_CONNECTIONS} more" if len(names) > _NAMED_CONNECTIONS else ""
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED_CONNECTIONS])}{rest}"
