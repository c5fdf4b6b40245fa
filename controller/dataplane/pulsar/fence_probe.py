"""Checks whether clients can learn that a terminated topic has ended, and makes the broker reload a topic that stays fenced.

A broker (seen with 4.2.4) fences a topic that is terminated between the arrival and the storing of a message, and
sometimes never lifts the fence. No consumer can then subscribe to the topic, and its producers wait. No statistics show
the fence, so the probe tries to open a producer, or a reader where a producer needs a schema.
"""

from __future__ import annotations

import pulsar

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import unreadably_encrypting
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.library_errors import mapped
from controller.domain.errors import SegmentNotFound
from controller.domain.gate_states import FenceState
from controller.domain.pulsar_names import full_name

PROBE_SECONDS = 1
"""Maximum seconds for opening a producer. The library repeats the request within this time, so the probe does not report a fence
that the broker lifts by itself.
"""


def probe_fence(
    connections: Connections, cursors: Cursors, backing_topic: str, deadline: Deadline
) -> FenceState:
    """Return whether clients can learn that the topic has ended. A topic that stays fenced is reloaded. The call timeout
    of `connections` must be `PROBE_SECONDS`.

    TERMINATED: the topic is terminated, and the broker reports this to a producer, or admits a reader. OPEN: the topic is not
    terminated, or accepts a producer. MISSING: there is no such topic. FENCED: the topic is terminated, the
    broker did not answer within `PROBE_SECONDS`, and the broker was made to reload the topic.

    Needs the rights to produce and to consume, and an administrator's rights for a reload. Raises DataPlaneTimeout at the
    deadline; DataPlaneUnavailable if the broker does not answer admin requests either; the other errors of
    `AdminCalls.ask`; and other errors of the library as Cleave's.
    """
    try:
        # A request for a producer may create a missing topic, so the topic is checked first.
        if not cursors.is_terminated(backing_topic, deadline):
            return FenceState.OPEN
        state = _state_for_clients(connections, backing_topic, deadline)
        if state is FenceState.FENCED and not cursors.reload_if_terminated(backing_topic, deadline):
            return FenceState.OPEN
        return state
    except SegmentNotFound:
        return FenceState.MISSING


def _state_for_clients(connections: Connections, backing_topic: str, deadline: Deadline) -> FenceState:
    """Try to open a producer on a terminated topic. Return OPEN if the producer opens; it is closed in a background
    thread. Return TERMINATED if the broker reports the end, and FENCED if it does not answer within `PROBE_SECONDS`.
    If the topic has a schema and its namespace enforces schemas, the result is that of `_state_for_readers`.

    Raises DataPlaneTimeout at the deadline, SegmentNotFound, and other errors of the library as Cleave's.
    """
    act, topic = f"probe {backing_topic}", full_name(backing_topic)
    try:
        producer = connections.open(act, deadline, lambda client: _producer(client, topic))
    except pulsar.TopicTerminated:
        return FenceState.TERMINATED
    except pulsar.IncompatibleSchema:  # the broker checks the schema before it checks for an end or a fence
        return _state_for_readers(connections, backing_topic, deadline)
    except pulsar.Timeout:
        return FenceState.FENCED
    except pulsar.PulsarException as error:
        raise mapped(error, act) from error
    connections.close_aside(producer)
    return FenceState.OPEN


def _state_for_readers(connections: Connections, backing_topic: str, deadline: Deadline) -> FenceState:
    """Try to open a reader on a terminated topic, which needs no schema. Return TERMINATED if the reader opens; it is
    closed in a background thread. Return FENCED if the broker does not answer within `PROBE_SECONDS`. Raises the errors
    of `_state_for_clients`.
    """
    act, topic = f"probe {backing_topic}", full_name(backing_topic)
    try:
        client, reader = connections.open_alone(
            act, deadline, lambda client: client.create_reader(topic, pulsar.MessageId.latest)
        )
    except pulsar.Timeout:
        return FenceState.FENCED
    except pulsar.PulsarException as error:
        raise mapped(error, act) from error
    connections.close_aside(reader, client)
    return FenceState.TERMINATED


def _producer(client: pulsar.Client, topic: str) -> pulsar.Producer:
    """Open a producer that encrypts, because a broker that requires encryption checks this before it checks for a fence."""
    with unreadably_encrypting() as encrypting:
        return client.create_producer(topic, **encrypting)
