"""Checks whether clients can learn that a terminated topic has ended, and makes the broker reload a topic that stays fenced.

A broker (seen with 4.2.4) fences a topic that is terminated between the arrival and the storing of a message, and
sometimes never lifts the fence. No consumer can then subscribe to the topic, and its producers wait. No statistics show
the fence, so the probe tries to open a producer.
"""

from __future__ import annotations

import pulsar

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import unreadably_encrypting
from controller.dataplane.pulsar.binary import Connections
from controller.dataplane.pulsar.cursors import Cursors
from controller.dataplane.pulsar.library_errors import mapped
from controller.domain.errors import SegmentNotFound, SegmentTerminated
from controller.domain.gate_states import FenceState
from controller.domain.pulsar_names import full_name

PROBE_SECONDS = 1
"""Maximum seconds for opening a producer. The library repeats the request within this time, so the probe does not report a fence
that the broker lifts by itself.
"""


class FenceProbe:
    """A probe for fenced topics. Safe to share between threads. Needs `close`.

    The call timeout of `connections` must be `PROBE_SECONDS`. `close` closes the connections.
    """

    def __init__(self, connections: Connections, cursors: Cursors) -> None:
        self._connections, self._cursors = connections, cursors

    def probe(self, backing_topic: str, deadline: Deadline) -> FenceState:
        """Return whether clients can learn that the topic has ended. A topic that stays fenced is reloaded.

        TERMINATED: the topic is terminated, and the broker reports this to a producer. OPEN: the topic is not
        terminated, or accepts a producer. MISSING: there is no such topic. FENCED: the topic is terminated, the
        broker did not answer a producer within `PROBE_SECONDS`, and the broker was made to reload the topic.

        Needs the right to produce, and an administrator's rights for a reload. Raises DataPlaneTimeout at the
        deadline; DataPlaneUnavailable if the broker does not answer admin requests either; the other errors of
        `AdminCalls.ask`; and other errors of the library as Cleave's.
        """
        try:
            # A request for a producer may create a missing topic, so the topic is checked first.
            if not self._cursors.is_terminated(backing_topic, deadline):
                return FenceState.OPEN
            return self._open_producer(backing_topic, deadline)
        except SegmentNotFound:
            return FenceState.MISSING
        except SegmentTerminated:
            return FenceState.TERMINATED

    def _open_producer(self, backing_topic: str, deadline: Deadline) -> FenceState:
        """Try to open a producer on a terminated topic. If the producer opens, close it in a background thread and
        return OPEN. If the broker does not answer within `PROBE_SECONDS`, reload the topic: return FENCED, or OPEN if
        the topic is no longer terminated.

        Raises SegmentTerminated if the broker reports the end; DataPlaneTimeout at the deadline; the errors of
        `Cursors.reload_if_terminated`; and other errors of the library as Cleave's.
        """
        act, topic = f"probe {backing_topic}", full_name(backing_topic)
        try:
            producer = self._connections.open(act, deadline, lambda client: _producer(client, topic))
        except pulsar.Timeout:
            return self._reload(backing_topic, deadline)
        except pulsar.PulsarException as error:
            raise mapped(error, act) from error
        self._connections.close_aside(producer)
        return FenceState.OPEN

    def _reload(self, backing_topic: str, deadline: Deadline) -> FenceState:
        """Make the broker reload the topic, and return FENCED; OPEN if the topic is not terminated."""
        is_reloaded = self._cursors.reload_if_terminated(backing_topic, deadline)
        return FenceState.FENCED if is_reloaded else FenceState.OPEN

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._connections.close()


def _producer(client: pulsar.Client, topic: str) -> pulsar.Producer:
    """Open a producer that encrypts, because a broker that requires encryption checks this before it checks for a fence."""
    with unreadably_encrypting() as encrypting:
        return client.create_producer(topic, **encrypting)
