"""Defines the protocol of the controller on a data plane: create, close, delete and describe logs.

Operations, the reconciler and the collector call `DataPlane`. Applications use the protocol of `log_client`.
Both protocols know only logs: no layouts, epochs or operations. A segment is identified by the name of its
backing topic.

One test suite (tests/contract) checks the behaviour of every adapter. Each call is idempotent because it
checks the present state: creating what exists, terminating what is terminated and deleting what is gone
succeed. The adapter maps each foreign error once, to Retryable (with a delay) or Terminal (with a sentence).
No call exceeds `call_timeout_seconds`: if there is no response in time, the adapter raises DataPlaneTimeout,
and the action may or may not have happened. Two calls have time limits of their own: a reshape by a broker that
keeps the layout, and a `sample` that reads metrics pages. Only the load collector, which holds no claims, samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from controller.domain.evaluation_input import Capabilities
from controller.domain.log_origin import LogOrigin


class LogState(StrEnum):
    """State of a backing log."""

    OPEN = "open"
    TERMINATED = "terminated"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one segment as its source reports them. The counters rise, and restart from 0 with the
    source or the log.

    *In* counts stored messages; a broker also counts messages that it refused because the log was being
    terminated. *Out* counts delivered messages, summed over subscriptions. `source` is the reporter: a broker
    since its start, or this server. `instant_ms` is the time at which this process read the counters, in
    milliseconds since the Unix epoch, by its `STEADY_CLOCK`. `producers` is the number of producers connected
    to the log at that time, None if the reporter does not know the number.
    """

    backing_topic: str
    source: str
    instant_ms: int
    msg_in: int
    byte_in: int
    msg_out: int
    byte_out: int
    producers: int | None = None


class DataPlane(Protocol):
    """The operations of a broker, or of the embedded logs, for the controller.

    A call raises DataPlaneUnavailable if the server cannot serve it at present; DataPlaneTimeout if there is
    no response within `call_timeout_seconds`, so that the action may or may not have happened; InvalidInput
    for a name that the data plane refuses; and another Terminal error for a lasting refusal.

    If the broker keeps the layout, a subscription belongs to the whole topic: `create_subscription`,
    `delete_subscription` and `list_subscriptions` then act on the subscriptions of the log's topic.
    """

    @property
    def name(self) -> str:
        """Name of this adapter in the registry, stored with each topic."""

    @property
    def capabilities(self) -> Capabilities:
        """The reshapes that this data plane can perform, and whether consumers can share a segment."""

    @property
    def call_timeout_seconds(self) -> float:
        """Longest duration of one call, in seconds, except a `sample` that reads metrics pages, which has a time
        limit of its own (`LoadSettings.page_seconds`). After a runner's claim on an operation expires, another
        runner waits at least this long before it takes the operation over.
        """

    def backing_topic(self, topic: str, descriptor: str) -> str:
        """Return the name of the log behind segment `descriptor` (`0000-7fff-12`) of `topic`. Makes no call,
        so the log need not exist. Raises InvalidInput for a name that the data plane refuses.
        """

    def create_segment(
        self, backing_topic: str, subscriptions: Sequence[str], origin: LogOrigin | None = None
    ) -> None:
        """Create the log with each subscription at the earliest position, and store `origin` with the log. An
        existing log keeps its origin and the positions of its subscriptions; missing subscriptions are added.

        If the broker keeps the layout, `origin` is not stored, and an existing log does not change.
        """

    def terminate_segment(self, backing_topic: str) -> str:
        """Make the log refuse appends permanently. Return the position of its last message as text, in the
        data plane's own form. A terminated log is success. Raises SegmentNotFound for a missing log, and
        Unsupported if only the broker can terminate logs.
        """

    def delete_segment(self, backing_topic: str) -> None:
        """Delete the log with all its subscriptions, even if clients are connected. A missing log is success.
        Raises Unsupported if only the broker can delete logs.
        """

    def segment_state(self, backing_topic: str) -> LogState:
        """Return the present state of the log; MISSING if there is no such log. If the broker keeps the layout,
        the layout determines the state, even if the log itself is missing.
        """

    def create_subscription(self, backing_topic: str, subscription: str) -> None:
        """Create the subscription at the earliest position; an existing subscription keeps its position.
        Raises SegmentNotFound.
        """

    def delete_subscription(self, backing_topic: str, subscription: str) -> None:
        """Delete the subscription, even if it has consumers. A missing subscription or log is success."""

    def list_segments(self, topic: str) -> Sequence[str]:
        """Return the backing topics of `topic`, sorted: all logs with the name of a segment of the topic,
        orphaned logs included; if the broker keeps the layout, the logs of the layout. Empty if there are
        none.
        """

    def list_subscriptions(self, backing_topic: str) -> Sequence[str]:
        """Return the durable subscriptions on the log, sorted, including those that applications created.
        Empty if the log is missing.
        """

    def backlog(self, backing_topic: str, subscription: str) -> int | None:
        """Return the number of unacknowledged messages of the subscription. None if the log or the
        subscription is missing, or a broker that keeps the layout has not loaded the log.

        The number is exact on embedded logs. A broker counts a batch whole until all of it is acknowledged,
        and may estimate a large number; a broker that keeps the layout counts entries.
        """

    def seek(self, backing_topic: str, subscription: str, instant_ms: int) -> None:
        """Move the cursor to the first message published at or after the instant (milliseconds since the Unix
        epoch), backwards or forwards; if there is none, to the end of the log.

        Open readers are disconnected; the next reader begins there. Raises SubscriptionNotFound or
        SegmentNotFound if there is no cursor.
        """

    def skip_all(self, backing_topic: str, subscription: str) -> None:
        """Acknowledge for the subscription all messages that are stored at the time of the call, and
        disconnect its readers. Raises SubscriptionNotFound or SegmentNotFound if there is no cursor.
        """

    def sample(self, backing_topics: Sequence[str]) -> Mapping[str, Counters]:
        """Return the counters of each log that responded, by its backing topic. A log that is missing or did
        not respond is absent. Raises an error only if no log responded. A call that reads metrics pages may
        take longer than `call_timeout_seconds`, so it must not be made under a claim.
        """

    def close(self) -> None:
        """Close the connections. The object must not be used afterwards."""


@dataclass(frozen=True, slots=True)
class Successor:
    """A log to create with `subscriptions` and the subscriptions of its `predecessors`, without those in
    `excepted`.
    """

    backing_topic: str
    predecessors: tuple[str, ...]
    subscriptions: tuple[str, ...]
    excepted: tuple[str, ...] = ()
    origin: LogOrigin | None = None
    """Origin to store with the log if the call creates the log. An existing log keeps its origin."""


@dataclass(frozen=True, slots=True)
class CreatedLog:
    """State of a successor after `create_successors`. `subscriptions` contains at least the subscriptions
    that the successor was to have.
    """

    state: LogState
    subscriptions: tuple[str, ...]
    origin: LogOrigin | None = None
    """Origin of the log after the call; another program may have created the log. None if the log has no
    origin.
    """


@dataclass(frozen=True, slots=True)
class CursorReport:
    """The position of one durable subscription on a log."""

    unread: int
    """Unacknowledged messages; 0 only if no message is unread. A broker counts a batch as one."""
    is_queue: bool | None = None
    """True if unordered readers share the subscription, False if the subscription is read in order. None if unknown."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """Everything about one log that a decision to delete the log needs."""

    state: LogState
    origin: LogOrigin | None
    """Origin stored with the log. None if the log has no readable origin, or is MISSING."""
    has_carried_messages: bool
    """False only if the data plane shows no trace of an application's message. Such a log never held a message, or
    its broker has removed all of them after their acknowledgement. A MISSING log has the value False.
    """
    cursors: Mapping[str, CursorReport]
    """Durable subscriptions by name, subscriptions that applications created included."""

    @property
    def is_read_to_end(self) -> bool:
        """True if the log is terminated and no subscription has unread messages. Also True for a terminated
        log without subscriptions.
        """
        return self.state is LogState.TERMINATED and not any(
            cursor.unread for cursor in self.cursors.values()
        )

    @property
    def most_unread(self) -> int:
        """Number of unread messages of the subscription that has most; 0 without subscriptions."""
        return max((cursor.unread for cursor in self.cursors.values()), default=0)

    @property
    def is_unused(self) -> bool:
        """True if the log exists and `has_carried_messages` is False: a deletion loses no unread message."""
        return self.state is not LogState.MISSING and not self.has_carried_messages


MISSING_LOG = LogReport(LogState.MISSING, None, False, {})
"""Report on a log that does not exist."""


@runtime_checkable
class SetWiseDataPlane(DataPlane, Protocol):
    """A data plane on which Cleave creates the logs. One call acts on many logs, and takes as long as for one
    log, or as for the slowest.

    For each log the call has the meaning of `DataPlane`'s call for one log. After an error a part of the work
    may be done, and a repeated call does the rest, unless the adapter guarantees all or nothing.
    """

    @property
    def shares_calls(self) -> bool:
        """True if operations may share a call. False if one unresponsive log would delay the others."""

    @property
    def shares_journal_server(self) -> bool:
        """True if the journal is in the same server. In a crash the server then loses the latest commits of
        both, in order.
        """

    def create_successors(self, successors: Sequence[Successor]) -> Mapping[str, CreatedLog]:
        """Create each log with its own subscriptions and those of its predecessors, at the earliest position.
        Add missing subscriptions to existing logs. Return the state, the subscriptions and the origin of each
        log after the call, by name.
        """

    def terminate_segments(self, backing_topics: Sequence[str]) -> Mapping[str, str]:
        """Make the existing logs refuse appends permanently. Return the position of the last message of each
        log as text, by name.

        A missing log is absent from the result. A log that another session has locked is absent too, and is
        not terminated: no log waits for another.
        """

    def subscriptions_of(self, backing_topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the durable subscriptions on each log, sorted, by the log's name. A log that is missing or
        has none is absent.
        """

    def list_segments_of(self, topics: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return for each topic its backing topics, sorted, orphaned logs included; an empty list for a topic
        without logs.
        """

    def describe_logs(self, backing_topics: Sequence[str]) -> Mapping[str, LogReport]:
        """Return a report on each log, by name, MISSING logs included. A log that did not respond is absent."""


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Result of a call of `trim`. `messages` is the number of deleted messages."""

    messages: int
    is_complete: bool
    """False if the call ran out of time: call again."""


@runtime_checkable
class TrimmingDataPlane(DataPlane, Protocol):
    """A data plane whose messages Cleave deletes. A broker deletes messages itself."""

    def trim(self, retention_seconds: float) -> Trimmed:
        """Delete from the front of each log, open logs included, messages that are older than
        `retention_seconds` (at least 0) and that every subscription has acknowledged. Without a subscription,
        delete all older messages. A log that another session has locked is skipped.

        The call ends after a limited time; `is_complete` of the result is False if the time ran out.
        """


@runtime_checkable
class NamespacedDataPlane(DataPlane, Protocol):
    """A data plane on which programs other than Cleave create namespaces."""

    def demand_namespace(self, topic: str) -> None:
        """Raise NotFound, with the next step, if the namespace of `topic` does not exist."""


@runtime_checkable
class LockableDataPlane(DataPlane, Protocol):
    """A data plane whose logs an application can keep locked, because the application logs in to the database
    that stores them.
    """

    def end_long_transactions(self) -> int:
        """End sessions of applications that have held locks for longer than a call may take, or that may have
        filled the server's queue of notifications. Return the number of sessions. Raises Terminal if the role
        may not end sessions.
        """


@runtime_checkable
class BucketCountingDataPlane(DataPlane, Protocol):
    """A data plane that counts the backlog of each entry bucket. A released broker counts whole subscriptions
    only.
    """

    def backlog_of_buckets(
        self, backing_topic: str, subscription: str, bucket_starts: Sequence[int]
    ) -> Sequence[int] | None:
        """Return the number of unacknowledged messages of each bucket, in the order of `bucket_starts`. None
        if the log or the subscription is missing.

        `bucket_starts` are the first hashes of the buckets, rising from 0. Not for a subscription that is
        read as a queue, whose acknowledged messages may be counted.
        """
