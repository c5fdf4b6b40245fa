"""Calls about the topics of one operation. Requests that do not need each other's answers are sent side by side.

Serves `plane` alone. Nothing here is all or nothing: what was done before an error stays done, and a repeat finds it. A
topic that this call made is taken for open; one that was there before is looked at. So a child that somebody closes by
hand just before the fence goes unnoticed here, and the reconciler finds and heals it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.dataplane.base import MISSING_LOG, Born, LogReport, LogState, Successor
from controller.dataplane.pulsar import asks
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.barrier import MOST_ENTRIES, barrier_of, holds_nothing_else
from controller.dataplane.pulsar.names import namespace_path, segment_topic, segments_of
from controller.domain.errors import CleaveError, SegmentNotFound
from controller.domain.pulsar_names import namespace_of


def create(admin: AdminCalls, successors: Sequence[Successor]) -> dict[str, Born]:
    """What each topic is afterwards, by name: made while its predecessors are asked for their subscriptions."""
    deadline = admin.deadline()
    making = [asks.create_topic(one.backing_topic, one.origin) for one in successors]
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
    # Of two simultaneous requests for one topic the broker answers both as if each had made the topic, and stores the
    # properties of one. So only the stored properties tell who created the topic.
    reading = [asks.properties(name) for name in wanted]
    subscribing = [asks.create_cursor(log, name) for log, names in wanted.items() for name in names]
    seen = admin.demand_all([*looking, *reading, *subscribing], deadline)
    states = {name: asks.state(ask, answer) for name, ask, answer in zip(older, looking, seen, strict=False)}
    stored = zip(reading, seen[len(older) :], strict=False)
    return {
        log: Born(states.get(log, LogState.OPEN), names, asks.origin(ask, answer))
        for (log, names), (ask, answer) in zip(wanted.items(), stored, strict=False)
    }


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


def describe(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, LogReport]:
    """Return a report on each topic, by name, MISSING topics included; without those that did not answer in full.

    The barrier of a gate is no message.
    """
    deadline = admin.deadline()
    asking = [
        (
            asks.internal_stats(name),
            asks.stats(name, f"describe {name}", asks.PRECISE_BACKLOG),
            asks.properties(name),
        )
        for name in backing_topics
    ]
    answers = iter(admin.ask_all([ask for three in asking for ask in three], deadline))
    found = {}
    for name, three in zip(backing_topics, asking, strict=True):
        answered = [next(answers) for _ in three]
        report = _report(three, answered)
        if report is not None and report.has_carried_messages:
            report = _without_barriers(admin, name, answered[0], report, deadline)
        if report is not None:
            found[name] = report
    return found


def _without_barriers(
    admin: AdminCalls, name: str, looked: Answer | CleaveError, report: LogReport, deadline: Deadline
) -> LogReport | None:
    """Return the report of a topic that may hold nothing but barriers. None if the topic did not answer."""
    if not isinstance(looked, Answer) or looked.document["numberOfEntries"] > MOST_ENTRIES:
        return report
    try:
        barrier = barrier_of(admin, name, looked.document, deadline)
    except CleaveError:
        return None
    is_unused = barrier is not None and holds_nothing_else(looked.document, barrier)
    return replace(report, has_carried_messages=not is_unused)


def _report(asking: Sequence[Ask], answers: Sequence[Answer | CleaveError]) -> LogReport | None:
    """Return None if one of the answers is missing or cannot be read."""
    looking, counting, reading = asking
    looked, counted, read = answers
    if not (isinstance(looked, Answer) and isinstance(counted, Answer) and isinstance(read, Answer)):
        return None
    if looked.status in asks.GONE or counted.status in asks.GONE:
        return MISSING_LOG
    try:
        return LogReport(
            asks.state(looking, looked),
            asks.origin(reading, read),
            asks.has_carried_messages(looking, looked),
            asks.cursors(counting, counted),
        )
    except CleaveError:
        return None
