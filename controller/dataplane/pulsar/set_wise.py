"""Acts on the topics of one operation. Requests that do not depend on each other are sent in parallel.

Used only by `plane`. A call is not atomic: work done before an error remains, and a repeated call finds it. A
topic that the call creates counts as open; the state of an existing topic is read. A child that another
program terminates just before the fence is therefore not noticed here; the reconciler detects and repairs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.dataplane.base import MISSING_LOG, CreatedLog, LogReport, LogState, Successor
from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.barrier import MOST_ENTRIES, barrier_of, holds_nothing_else
from controller.dataplane.pulsar.names import namespace_path, segment_topic, segments_of
from controller.domain.errors import CleaveError, SegmentNotFound
from controller.domain.pulsar_names import namespace_of


def create(admin: AdminCalls, successors: Sequence[Successor]) -> dict[str, CreatedLog]:
    """Create the topics with their own subscriptions and those of their predecessors, without those in
    `excepted`, and return the state, these subscriptions (sorted) and the origin of each after the call, by
    name. Missing subscriptions are added to existing topics; further subscriptions of an existing topic are not
    returned. A missing predecessor has no subscriptions.

    The predecessors' subscriptions are read while the topics are created. Raises the first error; the work
    done before remains.
    """
    deadline = admin.deadline()
    creation_requests = [
        topic_requests.create_topic(successor.backing_topic, successor.origin) for successor in successors
    ]
    predecessors = sorted({name for successor in successors for name in successor.predecessors})
    stats_requests = [topic_requests.stats(name, f"list subscriptions of {name}") for name in predecessors]
    answers = admin.demand_all([*creation_requests, *stats_requests], deadline)
    subscriptions_of = {
        name: frozenset(topic_requests.subscriptions(ask, answer) or ())
        for name, ask, answer in zip(
            predecessors, stats_requests, answers[len(creation_requests) :], strict=True
        )
    }
    subscriptions_to_have = {
        successor.backing_topic: _subscriptions_for(successor, subscriptions_of) for successor in successors
    }
    older = [
        successor.backing_topic
        for successor, answer in zip(successors, answers, strict=False)
        if answer.status in topic_requests.EXISTS
    ]
    state_requests = [topic_requests.internal_stats(name) for name in older]
    # The broker answers two simultaneous requests for one topic as if each had created the topic, and stores
    # the properties of one. Only the stored properties therefore show who created the topic.
    property_requests = [topic_requests.properties(name) for name in subscriptions_to_have]
    cursor_requests = [
        topic_requests.create_cursor(log, name)
        for log, names in subscriptions_to_have.items()
        for name in names
    ]
    # The creations of cursors take the longest, so they are sent first.
    later_answers = admin.demand_all([*cursor_requests, *state_requests, *property_requests], deadline)
    state_answers = later_answers[len(cursor_requests) :]
    states = {
        name: topic_requests.state(ask, answer)
        for name, ask, answer in zip(older, state_requests, state_answers, strict=False)
    }
    stored = zip(property_requests, state_answers[len(older) :], strict=True)
    return {
        log: CreatedLog(states.get(log, LogState.OPEN), names, topic_requests.origin(ask, answer))
        for (log, names), (ask, answer) in zip(subscriptions_to_have.items(), stored, strict=False)
    }


def _subscriptions_for(
    successor: Successor, subscriptions_of: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """Return the subscriptions that the successor is to have, sorted. `subscriptions_of` has those of each
    predecessor.
    """
    inherited = frozenset().union(*(subscriptions_of[name] for name in successor.predecessors))
    return tuple(sorted({*successor.subscriptions, *inherited} - {*successor.excepted}))


def terminate(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, str]:
    """Terminate the topics, in parallel, and return the last position of each that exists, by name, as
    `ledger:entry` (the entry is -1 in an empty topic). A missing topic is absent; a terminated one is success.

    Raises the first error other than SegmentNotFound; the other topics may then be terminated.
    """
    closing = [topic_requests.terminate(name) for name in backing_topics]
    answers = admin.ask_all(closing, admin.deadline())
    for answer in answers:
        if isinstance(answer, CleaveError) and not isinstance(answer, SegmentNotFound):
            raise answer
    return {
        name: topic_requests.position(ask, answer)
        for name, ask, answer in zip(backing_topics, closing, answers, strict=True)
        if not isinstance(answer, CleaveError)
    }


def subscriptions(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, list[str]]:
    """Return the durable subscriptions of each topic, sorted, by the topic's name. A topic that is missing or
    has none is absent.
    """
    listing = [topic_requests.stats(name, f"list subscriptions of {name}") for name in backing_topics]
    answers = admin.demand_all(listing, admin.deadline())
    return {
        name: sorted(names)
        for name, ask, answer in zip(backing_topics, listing, answers, strict=True)
        if (names := topic_requests.subscriptions(ask, answer))
    }


def segments(admin: AdminCalls, topics: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of all logs of each topic's segments, sorted, by topic; an empty list for a topic without
    logs. Each namespace is listed once, however many of its topics are requested. A missing namespace has no
    logs. Raises InvalidInput for an invalid topic, and DataPlaneUnavailable for a response that is not a list.
    """
    namespaces = {topic: namespace_path(namespace_of(segment_topic(topic, ""))) for topic in topics}
    listing = {
        namespace: Ask(
            "GET", f"persistent/{namespace}", f"list topics of {namespace}", accept=topic_requests.GONE
        )
        for namespace in sorted({*namespaces.values()})
    }
    answers = admin.demand_all([*listing.values()], admin.deadline())
    names = [
        name for ask, answer in zip(listing.values(), answers, strict=True) for name in _names(ask, answer)
    ]
    return segments_of(topics, names)


def _names(ask: Ask, answer: Answer) -> list[str]:
    """Return the names of topics in the response. Empty for a missing namespace. Raises DataPlaneUnavailable
    for another document.
    """
    if answer.status in topic_requests.GONE:
        return []
    if not isinstance(answer.document, list):
        raise topic_requests.unreadable(ask.purpose, answer.document)
    return answer.document


def describe(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, LogReport]:
    """Return a report on each topic, by name, MISSING topics included. Topics whose responses are missing or
    incomplete are absent. The barrier of a gate does not count as a message.

    Sends three requests per topic at the same time, and further ones for a topic that may contain only
    barriers.
    """
    deadline = admin.deadline()
    requests = [
        (
            topic_requests.internal_stats(name),
            topic_requests.stats(name, f"describe {name}", topic_requests.PRECISE_BACKLOG),
            topic_requests.properties(name),
        )
        for name in backing_topics
    ]
    answers = iter(
        admin.ask_all([ask for topic_requests_of in requests for ask in topic_requests_of], deadline)
    )
    reports = {}
    for name, topic_requests_of in zip(backing_topics, requests, strict=True):
        topic_answers = [next(answers) for _ in topic_requests_of]
        report = _report(topic_requests_of, topic_answers)
        if report is not None and report.has_carried_messages:
            report = _without_barriers(admin, name, topic_answers[0], report, deadline)
        if report is not None:
            reports[name] = report
    return reports


def _without_barriers(
    admin: AdminCalls, name: str, state: Answer | CleaveError, report: LogReport, deadline: Deadline
) -> LogReport | None:
    """Return the report, with `has_carried_messages` False if the topic contains only the barrier of a gate,
    otherwise True. `state` is the response with the topic's internal statistics. None if a request for an entry
    failed.
    """
    if not isinstance(state, Answer) or state.document["numberOfEntries"] > MOST_ENTRIES:
        return report
    try:
        barrier = barrier_of(admin, name, state.document, deadline)
    except CleaveError:
        return None
    is_unused = barrier is not None and holds_nothing_else(state.document, barrier)
    return replace(report, has_carried_messages=not is_unused)


def _report(requests: Sequence[Ask], answers: Sequence[Answer | CleaveError]) -> LogReport | None:
    """Return the report on one topic from the responses about its internal statistics, statistics and properties, in
    this order. `MISSING_LOG` if the broker has no such topic. None if a request failed or a response cannot be read.
    """
    state_request, stats_request, properties_request = requests
    state, stats, properties = answers
    if not (isinstance(state, Answer) and isinstance(stats, Answer) and isinstance(properties, Answer)):
        return None
    if state.status in topic_requests.GONE or stats.status in topic_requests.GONE:
        return MISSING_LOG
    try:
        return LogReport(
            topic_requests.state(state_request, state),
            topic_requests.origin(properties_request, properties),
            topic_requests.has_carried_messages(state_request, state),
            topic_requests.cursors(stats_request, stats),
        )
    except CleaveError:
        return None
