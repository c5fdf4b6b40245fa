"""Terminates, lists and describes the topics of one operation. Requests that do not depend on each other are sent in
parallel. `successor_creation` creates topics.

Used only by `plane`. A call is not atomic: work done before an error remains, and a repeated call finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.dataplane.base import MISSING_LOG, LogReport
from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.barrier import MOST_ENTRIES, barrier_of, holds_nothing_else
from controller.dataplane.pulsar.names import namespace_path, segment_topic, segments_of
from controller.domain.errors import CleaveError, SegmentNotFound
from controller.domain.pulsar_names import namespace_of


def terminate(admin: AdminCalls, backing_topics: Sequence[str]) -> dict[str, str]:
    """Make the topics refuse appends permanently, in parallel, and return the position of the last entry of each, by
    name, as `ledger:entry` (the entry is -1 in an empty topic). A missing topic is absent from the result. For a
    topic that is already terminated, the result is the same.

    Raises the first error of `AdminCalls.ask` that is not SegmentNotFound, such as DataPlaneTimeout, and
    DataPlaneUnavailable for an incomplete response. Other topics may then be terminated.
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
    """Return the names of the durable subscriptions of each topic, sorted, by the topic's name, without the broker's
    own. A topic that is missing or has no such subscription is absent. Raises DataPlaneUnavailable for an incomplete
    response; DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.demand_all`.
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
    logs, and for a topic whose namespace is missing. Each namespace is listed once, however many of its topics are
    requested. Raises InvalidInput for an invalid topic; DataPlaneUnavailable for a response that is not a list;
    DataPlaneTimeout at the deadline; and the other errors of `AdminCalls.demand_all`.
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
    """Return a report on each topic, by name; `MISSING_LOG` for a missing topic. A topic is absent if a request about
    the topic failed or a response is incomplete; such errors, DataPlaneTimeout included, are not raised. Backlogs are
    in entries. The barrier of a gate does not count as a message.

    Sends three requests per topic, in parallel, and further ones for a topic that may contain only a barrier.
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
    """Return the report on the topic `name` with a corrected `has_carried_messages`: False if the topic contains only
    the barrier of a gate, otherwise True. `state` is the response with the topic's internal statistics. Reads entries
    of the topic if there are at most `MOST_ENTRIES`. None if a request for an entry failed.
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
