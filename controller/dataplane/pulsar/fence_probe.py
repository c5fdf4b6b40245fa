"""Looks whether the clients of a terminated topic can learn that the topic has ended, and heals a topic that stays fenced.

A broker (seen with 4.2.4) fences a topic whose termination comes between a message and its storing, and sometimes never lifts the fence.
Then nobody can subscribe to the topic, and its producers wait. No statistics show the fence, so the probe asks for a producer.
"""

from __future__ import annotations

import pulsar

from controller.dataplane.pulsar.admin import Deadline
from controller.dataplane.pulsar.barrier import unreadably_encrypting
from controller.dataplane.pulsar.binary import Connections, mapped
from controller.dataplane.pulsar.cursors import Cursors
from controller.domain.errors import SegmentNotFound, SegmentTerminated
from controller.domain.gates import FenceState
from controller.domain.pulsar_names import full_name

PROBE_SECONDS = 1
"""Time for a producer. The library repeats the request meanwhile, so a fence that the broker lifts by itself is not seen."""


class FenceProbe:
    """Probes topics. `connections` gives up an operation after `PROBE_SECONDS`. Safe to share between threads."""

    def __init__(self, connections: Connections, cursors: Cursors) -> None:
        self._connections, self._cursors = connections, cursors

    def probe(self, backing_topic: str, deadline: Deadline) -> FenceState:
        """See `GatedDataPlane.probe_fence`. Raises DataPlaneUnavailable if the broker did not answer otherwise, either."""
        act, topic = f"probe {backing_topic}", full_name(backing_topic)
        try:
            # The answer to a client that asks for a producer must not create a topic that is missing.
            if not self._cursors.is_terminated(backing_topic, deadline):
                return FenceState.OPEN
            producer = self._connections.open(act, deadline, lambda client: _producer(client, topic))
        except SegmentNotFound:
            return FenceState.MISSING
        except pulsar.Timeout:
            return self._reload(backing_topic, deadline)
        except pulsar.PulsarException as error:
            found = mapped(error, act)
            if isinstance(found, SegmentTerminated):
                return FenceState.TERMINATED
            if isinstance(found, SegmentNotFound):
                return FenceState.MISSING
            raise found from error
        self._connections.close_aside(producer)
        return FenceState.OPEN

    def _reload(self, backing_topic: str, deadline: Deadline) -> FenceState:
        is_reloaded = self._cursors.reload_if_terminated(backing_topic, deadline)
        return FenceState.FENCED if is_reloaded else FenceState.OPEN

    def close(self) -> None:
        """Give back connections."""
        self._connections.close()


def _producer(client: pulsar.Client, topic: str) -> pulsar.Producer:
    """A broker that requires encryption looks at that before it looks for a fence."""
    with unreadably_encrypting() as encrypting:
        return client.create_producer(topic, **encrypting)
