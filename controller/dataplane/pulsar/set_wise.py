"""Calls about the topics of one operation. Requests that do not need each other's answers are sent side by side.

Serves `plane` alone. Nothing here is all or nothing: what was done before an error stays done, and a repeat finds it. A
topic that this call made is taken for open; one that was there before is looked at. So a child that somebody closes by
hand just before the fence goes unnoticed here, and the reconciler finds and heals it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.dataplane.base import Born, LogState, Successor
from controller.dataplane.pulsar import asks
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask
from controller.dataplane.pulsar.names import namespace_of, namespace_path, segment_topic, segments_of
from controller.domain.errors import CleaveError, SegmentNotFound


def create(admin: AdminCalls, successors: Sequence[Successor]) -> dict[str, Born]:
    """What each topic is afterwards, by name: made while its predecessors are asked for their subscriptions."""
    deadline = admin.deadline()
    making = [asks.create_topic(one.backing_topic) for one in successors]
    predecessors = sorted({name for one in successors for name in one.predecessors})
    listing = [asks.stats(name, f"list subscriptions of {name}") for name in predecessors]
    answers = admin.demand_all([*making, *listing], deadline)
    found = {
        name: frozenset(asks.subscriptions(ask, answer) or ())
        for name, ask, answer in zip(predecessors, listing, answers[len(making) :], strict=True)
    }
    wanted = {one.backing_topic: _wanted(one, found) for one in successors}
    older = [
        one.backing_topic
        for one, answer in zip(successors, answers, strict=False)
        if answer.status in asks.EXISTS
    ]
    looking = [asks.internal_stats(name) for name in older]
    subscribing = [asks.create_cursor(log, name) for log, names in wanted.items() for name in names]
    seen = admin.demand_all([*looking, *subscribing], deadline)
    states = {name: asks.state(ask, answer) for name, ask, answer in zip(older, looking, seen, strict=False)}
    return {log: Born(states.get(log, LogState.OPEN), names) for log, names in wanted.items()}


def _wanted(successor: Successor, found: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    inherited = frozenset().union(*(found[name] for name in successor.predecessors))
    return tuple(sorted({*successor.subscriptions, *inherited} - {*successor.excepted}))


def terminate(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, str]:
    """The last position of each topic that exists, by name. After an error some others may be closed, too."""
    closing = [asks.terminate(name) for name in backing_topics]
    answers = admin.ask_all(closing, admin.deadline())
    for answer in answers:
        if isinstance(answer, CleaveError) and not isinstance(answer, SegmentNotFound):
            raise answer
    return {
        name: asks.position(ask, answer)
        for name, ask, answer in zip(backing_topics, closing, answers, strict=True)
        if not isinstance(answer, CleaveError)
    }


def subscriptions(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, list[str]]:
    """Durable ones by the topic's name; a topic that is missing or has none is absent."""
    listing = [asks.stats(name, f"list subscriptions of {name}") for name in backing_topics]
    answers = admin.demand_all(listing, admin.deadline())
    return {
        name: sorted(names)
        for name, ask, answer in zip(backing_topics, listing, answers, strict=True)
        if (names := asks.subscriptions(ask, answer))
    }


def segments(admin: AdminCalls, topics: Sequence[str]) -> dict[str, list[str]]:
    """Names of segments, sorted, by topic. A namespace is listed once, however many of its topics are asked for."""
    namespaces = {topic: namespace_path(namespace_of(segment_topic(topic, ""))) for topic in topics}
    listing = {
        one: Ask("GET", f"persistent/{one}", f"list topics of {one}", accept=asks.GONE)
        for one in sorted({*namespaces.values()})
    }
    answers = admin.demand_all([*listing.values()], admin.deadline())
    names = [
        name for ask, answer in zip(listing.values(), answers, strict=True) for name in _names(ask, answer)
    ]
    return segments_of(topics, names)


def _names(ask: Ask, answer: Answer) -> list[str]:
    if answer.status in asks.GONE:
        return []
    if not isinstance(answer.document, list):
        raise asks.unreadable(ask.act, answer.document)
    return answer.document


def states(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, LogState]:
    """What each topic is now; without those that did not answer."""
    looking = [asks.internal_stats(name) for name in backing_topics]
    answers = admin.ask_all(looking, admin.deadline())
    return {
        name: asks.state(ask, answer)
        for name, ask, answer in zip(backing_topics, looking, answers, strict=True)
        if isinstance(answer, Answer)
    }
