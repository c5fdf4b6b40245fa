"""Creates the topics of children, each with the subscriptions of its predecessors. Requests that do not depend on
each other are sent in parallel.

Used only by `plane`. A call is not atomic: work done before an error remains, and a repeated call finds it. A
topic that the call creates counts as open; the state of an existing topic is read. A child that another
program terminates just before the fence is therefore not noticed here; the reconciler detects and repairs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.dataplane.base import CreatedLog, LogState, Successor
from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.admin import AdminCalls, Deadline


def create_successors(admin: AdminCalls, successors: Sequence[Successor]) -> dict[str, CreatedLog]:
    """Create the topics with their own subscriptions and those of their predecessors, without those in `excepted`, at
    the earliest position. An existing topic keeps its origin and its positions, and gets the subscriptions that it
    lacks. A missing predecessor contributes no subscription.

    Return, by name, the state, the subscriptions that the topic was to have (sorted) and the origin of each topic
    after the call. A topic that the call created counts as OPEN. Further subscriptions of an existing topic are not
    returned.

    Raises NotFound for a missing namespace; DataPlaneTimeout at the deadline; and the other errors of
    `AdminCalls.demand_all`. The work done before an error remains, and a repeated call does the rest.
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
    older = [
        successor.backing_topic
        for successor, answer in zip(successors, answers, strict=False)
        if answer.status in topic_requests.EXISTS
    ]
    subscriptions_to_have = {
        successor.backing_topic: _subscriptions_for(successor, subscriptions_of) for successor in successors
    }
    return _complete(admin, subscriptions_to_have, older, deadline)


def _subscriptions_for(
    successor: Successor, subscriptions_of: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """Return the subscriptions that the successor is to have, sorted. `subscriptions_of` has those of each
    predecessor.
    """
    inherited = frozenset().union(*(subscriptions_of[name] for name in successor.predecessors))
    return tuple(sorted({*successor.subscriptions, *inherited} - {*successor.excepted}))


def _complete(
    admin: AdminCalls,
    subscriptions_to_have: Mapping[str, tuple[str, ...]],
    older: Sequence[str],
    deadline: Deadline,
) -> dict[str, CreatedLog]:
    """Create the subscriptions that the topics are to have, by topic, and return the results of `create_successors`.
    `older` are the topics that existed before the call; only their states are read. Raises the errors of
    `AdminCalls.demand_all`.
    """
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
