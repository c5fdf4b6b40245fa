"""The data plane protocol: the few acts Cleave needs from whatever keeps the logs.

One behavioural suite (tests/contract) runs on every adapter. Each call is idempotent by looking at what is
there: creating what exists, terminating what is terminated and deleting what is gone succeed. Each foreign
error is mapped once, in the adapter, to Retryable (with a delay) or Terminal (with a sentence). No call
outlives `call_timeout_seconds`: when the answer does not come in time the adapter raises DataPlaneTimeout, and
the act may or may not have happened.

Nothing here knows layouts, epochs or operations: a segment is the name of its backing topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from controller.domain.situation import Capabilities


class LogState(StrEnum):
    """State of a backing log."""

    OPEN = "open"
    TERMINATED = "terminated"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Counters:
    """Monotonic counters of one segment as its source reports them; they restart from 0 with the source.

    `source` names the reporter (a broker, or this server); `instant_ms` is the reporter's reading time.
    """

    backing_topic: str
    source: str
    instant_ms: int
    msg_in: int
    byte_in: int
    msg_out: int
    byte_out: int


class DataPlane(Protocol):
    """What a broker, or the embedded logs, can do for the controller."""

    @property
    def name(self) -> str:
        """The registry's name for this adapter, stored with each topic."""

    @property
    def capabilities(self) -> Capabilities:
        """Which reshapes this plane can do."""

    @property
    def call_timeout_seconds(self) -> float:
        """The longest any one call may take; a takeover waits at least this long after a claim expires."""

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """Name of the log behind segment `descriptor` (`0000-7fff-12`) of `topic`."""

    def create_segment(self, backing_topic: str, subscriptions: Sequence[str]) -> None:
        """Create the log with each subscription at the earliest position; also fills in missing subscriptions."""

    def terminate_segment(self, backing_topic: str) -> str:
        """Close the log for appends and return its last position. A missing log is Terminal (NotFound)."""

    def delete_segment(self, backing_topic: str) -> None:
        """Delete the log with all its subscriptions, by force. A missing log is success."""

    def segment_state(self, backing_topic: str) -> LogState:
        """What the log is now."""

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create the subscription at earliest; an existing one keeps its position."""

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete it; a missing subscription or log is success."""

    def list_segments(self, topic: str) -> Sequence[str]:
        """Backing topics of every log that belongs to `topic`, orphans included."""

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """Subscriptions on the log, those made directly by applications included; empty if it is missing."""

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Unacknowledged messages, precisely; None where the log or the subscription is missing."""

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the cursor to the first message published at or after the instant."""

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge everything up to now."""

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Counters of those logs that answered; one that is absent was silent."""

    def close(self) -> None:
        """Give back connections."""
