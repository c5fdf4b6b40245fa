"""Interface of a data plane to gates, which keep the order of keys for standard consumers.

A standard consumer is a consumer of the data plane's own client library, which does not register with Cleave. A
gate belongs to one log and one subscription. The data plane stores the gate, so a closed gate holds while no process
of Cleave runs. Each call is idempotent. The controller's claims ensure that only one runner at a time calls for a log.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from controller.dataplane.base import DataPlane
from controller.domain.gate_states import FenceState, GateState


@runtime_checkable
class GatedDataPlane(DataPlane, Protocol):
    """A data plane whose logs can have gates, if its servers allow gates."""

    def demand_gates(self, topic: str) -> None:
        """Raise Unsupported if logs of `topic` cannot have gates. The error states the reason and the next step.

        The reason is the servers' version, the servers' configuration or missing rights of the controller's role.
        Raises NotFound if the namespace of `topic` does not exist.
        """

    def close_gate(self, backing_topic: str, subscription: str) -> None:
        """Stop the delivery of the log's messages to the subscription until `open_gate`.

        Close the gate before producers learn of the log, because the barrier must be the first entry of the log. The
        call creates a missing subscription at the beginning of the log. A cursor that has passed the barrier is moved
        back to the beginning; the messages behind the barrier are delivered again after the gate is opened. Connected
        consumers are disconnected and reconnect. Other subscriptions skip the barrier, except those with a closed gate.
        While the gate is closed, the subscription's backlog includes the entries of the barrier.

        Raises SegmentNotFound. Raises Unsupported if the servers store no policies of logs. Raises DataGone, and
        changes nothing, if the log begins with a message of an application, because no barrier can precede this message.
        """

    def open_gate(self, backing_topic: str, subscription: str) -> None:
        """Start the delivery of the log's messages to the subscription, from the first message behind the barrier.

        A cursor that is already behind the barrier does not move. Clients of the log may be disconnected and reconnect. A
        missing log is success. If the subscription is missing, only the gate that it left is removed.
        """

    def gate_state(self, backing_topic: str, subscription: str) -> GateState | None:
        """Return the state of the gate. None if the log or the subscription does not exist."""

    def skip_barrier(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge the log's barrier for the subscription, unless the subscription's gate is closed. A standard consumer does not
        acknowledge a barrier. No effect without a barrier, without the subscription, or behind the barrier. Raises SegmentNotFound.
        """

    def persist_cursor_at_end(self, backing_topic: str, subscription: str) -> bool:
        """Persist the cursor of a drained log, so that a crash of a server cannot move the cursor back.

        Return True if the log is terminated and the subscription has acknowledged all its messages. The data plane may
        disconnect the log's consumers. The barrier of an open gate is no message: a subscription that stands before the
        barrier skips it. Return False if messages are unacknowledged or more may be appended. Return False also if
        messages were delivered again during the call. Raises SegmentNotFound, SubscriptionNotFound.
        """

    def probe_fence(self, backing_topic: str) -> FenceState:
        """Return TERMINATED if clients can learn that a terminated log has ended; FENCED if they could not, and the servers
        were made to reload the log; OPEN for a log that accepts appends; MISSING for a missing log.

        A broker can leave a log fenced if the log is terminated during an append (seen with Pulsar 4.2.4). No consumer can
        then subscribe to the log, and the log's producers do not learn of its end. Probe after each termination. Repeat the
        probe a few times while the result is FENCED. If the log stays FENCED, the broker refuses clients for another
        reason, such as a backlog quota. Raises Unsupported if this process lacks the library for the probe.
        """
