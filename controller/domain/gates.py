"""States of a gate, which holds back the messages of one child log from one subscription until the parents are drained.

A gate consists of a dispatch rate of the subscription and a barrier, an entry in front of the log's messages that no client
shows to an application. `dataplane/gates.py` says what a data plane does to a gate.
"""

from __future__ import annotations

from enum import StrEnum


class GateState(StrEnum):
    """State of the gate of one log and one subscription, as the data plane has it. `reason` explains the state in a clause."""

    CLOSED = "closed"
    """Both parts are in place, and the cursor stands before the barrier: no message of an application is delivered."""
    OPEN = "open"
    """The rate is missing: messages are delivered."""
    BREACHED = "breached"
    """The rate is in place, but the subscription has acknowledged the barrier, or there is none: each load of the log may deliver
    one message.

    A gate is also BREACHED for a moment while it is closed for the first time, and while it is opened.
    """

    @property
    def reason(self) -> str:
        """Clause that follows on "the gate is {state}: "."""
        return _REASONS[self]


_REASONS = {
    GateState.CLOSED: "the subscription receives no messages of the segment",
    GateState.OPEN: "the subscription receives the messages of the segment",
    GateState.BREACHED: "a consumer has acknowledged the barrier; set the consumers' crypto failure action to FAIL",
}


class FenceState(StrEnum):
    """What a probe of a log that was terminated found."""

    TERMINATED = "terminated"
    """The data plane tells producers that the log has ended, and consumers can attach."""
    FENCED = "fenced"
    """The data plane refused producers and consumers. The probe has had the log loaded again; probe again."""
    OPEN = "open"
    """The log accepts appends."""
    MISSING = "missing"
    """There is no such log."""
