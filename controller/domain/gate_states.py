"""States of a gate and of a terminated log's fence.

A gate holds the messages of one child log back from one subscription until all ancestors are drained. The gate consists
of a dispatch rate of the subscription and of a barrier: entries in front of the log's messages that clients do not show
to an application. `dataplane/gates.py` defines the calls of a data plane that close and open gates.
"""

from __future__ import annotations

from enum import StrEnum


class GateState(StrEnum):
    """State of the gate of one log and one subscription at the data plane."""

    CLOSED = "closed"
    """The rate and the barrier are in place, and the cursor is before the barrier. No message of an application is
    delivered. An empty terminated log needs no barrier, because no message can follow.
    """
    SPENT = "spent"
    """Closed, but consumers were sent several entries of the barrier since a server loaded the log. A few more, and a message of an
    application would follow; the gate has to be closed again.
    """
    OPEN = "open"
    """The rate is not set. Messages are delivered."""
    BREACHED = "breached"
    """The rate is in place, but the subscription has acknowledged the barrier or a part of it, or the log does not
    begin with a barrier. Each load of the log by a server may deliver one message.

    A gate is also BREACHED briefly while it is closed for the first time, and while it is opened.
    """

    @property
    def is_shut(self) -> bool:
        """True for each state except OPEN: the dispatch rate is set. A BREACHED gate counts, although it may let
        messages pass.
        """

        return self is not GateState.OPEN


class FenceState(StrEnum):
    """Result of a probe of a terminated log."""

    TERMINATED = "terminated"
    """The data plane tells producers that the log has ended, and consumers can connect."""
    FENCED = "fenced"
    """Producers and consumers could not connect. The probe made the servers reload the log; probe again."""
    OPEN = "open"
    """The log accepts appends."""
    MISSING = "missing"
    """The log does not exist."""
