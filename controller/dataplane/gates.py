"""What a data plane does to gates, which keep the order of keys for consumers that know nothing of Cleave.

A gate belongs to one log and one subscription. The data plane stores it, so no process has to be alive for a closed gate to hold.
Each call is idempotent. Calls for one log come from one runner at a time, which the controller's claims make sure of.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from controller.dataplane.base import DataPlane
from controller.domain.gates import FenceState, GateState


@runtime_checkable
class GatedDataPlane(DataPlane, Protocol):
    """A data plane whose logs can have gates, if its servers allow gates."""

    def demand_gates(self, topic: str) -> None:
        """Raise Unsupported, with the reason and the next move, if logs of `topic` cannot have gates.

        Reasons are the servers' version or configuration, and the rights of the controller's role.
        """

    def close_gate(self, backing_topic: str, subscription: str) -> None:
        """Deliver no message of the log to the subscription until `open_gate`.

        The call creates the subscription at the beginning of the log, or moves a cursor that has passed the barrier back to
        there; messages behind the barrier are delivered again after the opening. Consumers that are attached are
        disconnected and attach again. All other subscriptions skip the barrier. Close the gate before producers
        learn of the log; until the opening, its backlog counts the entries of the barrier too. Raises SegmentNotFound, Unsupported
        if the servers keep no policies of logs, and DataGone if the log begins with a message of an application, so that no barrier
        can come before the message; nothing was changed then.
        """

    def open_gate(self, backing_topic: str, subscription: str) -> None:
        """Deliver the messages of the log to the subscription. The cursor stands behind the barrier, or where it was behind it.

        A missing log or subscription, and a gate that was never closed, are success.
        """

    def gate_state(self, backing_topic: str, subscription: str) -> GateState | None:
        """State of the gate. None if there is no such log or subscription."""

    def persist_cursor_at_end(self, backing_topic: str, subscription: str) -> bool:
        """Store the cursor, so that no crash of a server moves the cursor back. Consumers of the log may be disconnected.

        Return True if the log is terminated and the subscription has acknowledged all of it; False, without any effect, if more
        may come or messages are left. Raises SegmentNotFound, SubscriptionNotFound.
        """

    def probe_fence(self, backing_topic: str) -> FenceState:
        """Look whether a log that was terminated says so to its clients. Have a log that stays fenced loaded again.

        A broker may keep a log fenced that was terminated during an append (seen with Pulsar 4.2.4): nobody can subscribe to the log, and its producers
        do not learn of its end. Probe after each termination, and again, a few times at most, while the answer is FENCED: a log that stays
        FENCED is refused for another reason, such as a quota for its backlog.
        """
