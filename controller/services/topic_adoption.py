"""Adopt a topic that exists already: look at it, refuse what would cut somebody off, and intend to take it over.

The old topic's logs become the sealed first generation of a scalable topic and stay where they are. Until its logs are
terminated, deleting the new topic undoes everything. Afterwards the broker refuses producers of the old name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.dataplane.adoptable import Adoptable, FoundTopic
from controller.dataplane.base import DataPlane
from controller.dataplane.registry import demand_subscription
from controller.domain.errors import Conflict, InvalidInput, Unsupported
from controller.domain.names import demand_name
from controller.domain.policy import PolicyOverride
from controller.store.journal import adoptions, operations
from controller.store.journal.adoptions import Adoption
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.topics import policies
from controller.store.topics.subscriptions import SubscriptionKind

_NAMED = 5
"""How many connections a refusal names; the dry run names all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What adopting would do. `topic` is the new name."""

    topic: str
    found: FoundTopic
    segments: int
    unserved: Mapping[str, str]
    """Subscriptions whose names no consumer of Cleave can give, and why."""

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why it cannot be done now without cutting somebody off, one sentence each."""
        live = {"producer": self.found.producers, "consumer": self.found.consumers}
        return tuple(_sentence(what, who) for what, who in live.items() if who)


def plan(
    planes: Mapping[str, DataPlane],
    old: str,
    *,
    topic: str | None = None,
    segments: int | None = None,
    data_plane: str = "pulsar",
) -> Plan:
    """Look at the old topic and say what would happen; nothing is changed.

    Raises TopicNotFound, InvalidInput, Conflict for a topic that is closed already, Unsupported.
    """
    plane = planes.get(data_plane)
    if not isinstance(plane, Adoptable):
        raise Unsupported(
            f"data plane {data_plane!r} has no topics to adopt here; set CLEAVE_PULSAR_ADMIN_URL and choose pulsar"
        )
    found = plane.describe_topic(old)
    if found.terminated:
        raise Conflict(
            f"{found.terminated[0]} is terminated already: nothing can follow it in order; adopt what is open"
        )
    if segments is not None and segments < 1:
        raise InvalidInput(f"{segments} segments; give at least 1")
    return Plan(
        topic or f"topic://{found.name.removeprefix('persistent://')}",
        found,
        segments or len(found.logs),
        _unserved(found.subscriptions, data_plane),
    )


def adopt(
    store: Store,
    planes: Mapping[str, DataPlane],
    planned: Plan,
    request: Request,
    *,
    data_plane: str = "pulsar",
    cut_off: bool = False,
    policy: PolicyOverride | None = None,
    stock: Collection[str] = (),
) -> Intent:
    """Intend what was planned; standard consumers go on to read the subscriptions in `stock`, behind gates. With `cut_off` the broker tells all who are connected that the topic has ended.

    Raises Conflict naming who is connected, TopicExists, InvalidInput. A transaction that is rolled back leaves subscriptions out that cannot
    be served; otherwise they are refused, since their messages would never be read.
    """
    if planned.unserved and not store.rolls_back:
        raise InvalidInput(
            f"{planned.found.name} has subscriptions that no consumer of Cleave could read: {'; '.join(planned.unserved.values())}. "
            "Delete them first, or have their applications subscribe under other names"
        )
    if planned.obstacles and not cut_off:
        raise Conflict(
            f"{planned.found.name} is in use: {'; '.join(planned.obstacles)}. Stop them first, or cut them off"
        )
    _demand_in_order(planned, stock)
    kinds = {
        name: SubscriptionKind.QUEUE if is_queue else SubscriptionKind.STREAM
        for name, is_queue in planned.found.subscriptions.items()
        if name not in planned.unserved
    }
    with store.transaction() as tx:
        if operations.find_by_request_key(tx, request.request_key) is None:  # a repeat has its first answer
            policies.demand_valid(tx, planned.topic, policy)
        buckets = policies.get_cluster(tx).policy
        adoption = Adoption(
            name=planned.topic,
            data_plane=data_plane,
            old_topics=planned.found.logs,
            subscriptions=kinds,
            segments=planned.segments,
            bucket_budget=buckets.entry_bucket_budget,
            max_buckets=buckets.entry_bucket_max_per_segment,
            policy=policy,
            stock=frozenset(stock) & kinds.keys(),
        )
        return adoptions.intend_adopt(
            tx, adoption, backing_topic=planes[data_plane].backing_topic, request=request
        )


def _demand_in_order(planned: Plan, stock: Collection[str]) -> None:
    for name in sorted(stock):
        if planned.found.subscriptions.get(name, True):
            what = "is read as a queue" if name in planned.found.subscriptions else "does not exist"
            raise InvalidInput(
                f"subscription {name} of {planned.found.name} {what}; name subscriptions of type Failover or Exclusive, which gates keep in order"
            )


def _unserved(names: Iterable[str], data_plane: str) -> dict[str, str]:
    unserved = {}
    for name in sorted(names):
        try:
            demand_subscription(data_plane, demand_name("subscription", name))
        except InvalidInput as error:
            unserved[name] = error.message
    return unserved


def _sentence(what: str, who: tuple[str, ...]) -> str:
    more = f" and {len(who) - _NAMED} more" if len(who) > _NAMED else ""
    return f"{what}{'s' if len(who) > 1 else ''} {', '.join(who[:_NAMED])}{more}"
