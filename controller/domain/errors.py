"""The errors of Cleave, as one tree. Every layer raises these errors; REST, commands and tasks map them to their own codes.

The tree::

    CleaveError
    ├── Retryable(delay_seconds)      retry after the delay; the request itself is valid
    │   ├── LostRace                  another transaction changed the row or input version; read again and decide again
    │   │   ├── HeldUp                another process or operation must finish first; no work was lost, read the state again
    │   │   └── LogShortened          (client side) a log lost its last messages; open a new reader
    │   ├── DataPlaneUnavailable      a call failed or was refused temporarily
    │   │   └── DataPlaneTimeout      no answer in time; the call may or may not have taken effect
    │   ├── StoreUnavailable          PostgreSQL is unavailable; at a client: no worker answers, or PostgreSQL is unavailable
    │   │   ├── TokenOutOfTime        the token has expired or is not valid yet (REST 401): send a valid one
    │   │   └── StoreRefused          PostgreSQL refuses the login, or has no such database: a command ends with exit 2
    │   ├── LimitReached              the limit of concurrent computations is reached; repeat the request later (REST 429)
    │   ├── TopicHeld                 the topic's logs must be compared with the journal, or are ahead of it
    │   ├── SegmentTerminated         (client side) the segment is fenced; look up the layout again
    │   └── SessionExpired            (client side) the consumer was disconnected for too long; begin a new session
    └── Terminal                      repeating the same request gives the same answer
        ├── InvalidInput              a value that can never be right (REST 412 or 400, CLI exit 2)
        │   ├── InvalidRange
        │   ├── InvalidLayoutChange
        │   └── InvalidPolicy
        ├── NotFound                  (REST 404)
        │   ├── TopicNotFound
        │   ├── SegmentNotFound
        │   ├── SubscriptionNotFound
        │   ├── OperationNotFound
        │   └── BundleNotFound
        ├── Conflict                  (REST 409)
        │   ├── TopicExists
        │   ├── SegmentBusy           the segment is part of a live operation
        │   ├── TopicNotLive
        │   ├── UnmanagedLog          another journal, or another program, created a log of this name
        │   ├── WorkerNameInUse       another process uses the worker name: a worker ends with exit 2
        │   └── AlreadyStored         (client side) the results already contain these messages: roll back
        ├── AccessDenied              the token is missing or not valid (REST 401)
        ├── AccessForbidden           the token is valid but does not permit the request (REST 403)
        ├── DataGone                  messages after a position were deleted
        ├── FencedOut                 a stale runner, or a consumer that another consumer replaced
        ├── Unsupported               the data plane cannot do this; the message says which data plane and what it can do
        └── InvariantViolated         never expected: the message names the invariant and the values

Errors carry plain values only and can be pickled, since Airflow and Spark move them between
processes. A message names the object, the value and the next step.
"""

from __future__ import annotations

from controller.domain.formatting import printable


class CleaveError(Exception):
    """Root of all errors that Cleave raises on purpose; `str(error)` is always one line of printable characters."""

    def __init__(self, message: str) -> None:
        self.message = printable(" ".join(message.split()))
        super().__init__(self.message)


class Retryable(CleaveError):
    """An error after which the same call, with the same arguments, is worth repeating after `delay_seconds` (>= 0)."""

    def __init__(self, message: str, delay_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class LostRace(Retryable):
    """The state that the caller relied on has changed: another transaction changed a row or input version, or a
    consumer lost its session, a bucket or the cursor of a log. Read again and decide again; a consumer opens a new
    reader or registers again. `what` is the kind of object that was to be written: a label of the metric.
    """

    def __init__(self, message: str, delay_seconds: float = 1.0, *, what: str = "row") -> None:
        super().__init__(message, delay_seconds)
        self.what = what


class HeldUp(LostRace):
    """Another process or operation must finish first. No work was lost; read the state again and retry."""


class LogShortened(LostRace):
    """A log lacks messages that a reader has received, after a fail-over or a restore. A new reader continues where the
    log's history continues.
    """

    resume: tuple[int, ...] | None = None
    """Position after which reading continues, for an application that keeps positions itself; None if the server keeps
    the position.
    """


class DataPlaneUnavailable(Retryable):
    """A call to the data plane failed or was refused temporarily."""


class DataPlaneTimeout(DataPlaneUnavailable):
    """The answer did not arrive in time. The call may or may not have taken effect, so check its effect before repeating
    it.
    """


class StoreUnavailable(Retryable):
    """PostgreSQL is unavailable; for a client: no worker answers, or PostgreSQL is unavailable."""


class StoreRefused(StoreUnavailable):
    """PostgreSQL refuses the login or has no such database. A loop keeps retrying, because the cause is corrected
    outside the loop; a command says what to correct.
    """


class TopicHeld(Retryable):
    """The topic is held: its logs must be compared with the journal first, or are ahead of the journal. No operation may
    run on it.
    """


class TokenOutOfTime(StoreUnavailable):
    """The token has expired or is not valid yet. A client keeps sending fresh tokens until its retry timeout for an
    outage ends.
    """


class LimitReached(Retryable):
    """The limit of concurrent computations is reached, for one subject or for all. No computation began."""


class SegmentTerminated(Retryable):
    """The segment is fenced and accepts no more entries; look up the layout again."""


class SessionExpired(Retryable):
    """The consumer was disconnected for longer than its grace period, so other consumers may own its buckets, or the
    leader's version counter was reset. The consumer may begin a new session.
    """


class Terminal(CleaveError):
    """Repeating the same request gives the same answer."""


class InvalidInput(Terminal):
    """A value that is never valid."""


class InvalidRange(InvalidInput):
    """The value is not a hash range, or the ranges do not fit together."""


class InvalidLayoutChange(InvalidInput):
    """The layout does not permit this split, merge, rebucket, recut, repair or prune."""


class InvalidPolicy(InvalidInput):
    """A parameter is out of bounds, or parameters that are valid separately are invalid together."""


class NotFound(Terminal):
    """The named object does not exist."""


class TopicNotFound(NotFound):
    """The topic does not exist."""


class SegmentNotFound(NotFound):
    """The topic's layout has no such segment, or no segment that covers the hash; or the data plane has no such log."""


class SubscriptionNotFound(NotFound):
    """The topic has no such subscription."""


class OperationNotFound(NotFound):
    """The journal has no such operation."""


class BundleNotFound(NotFound):
    """The namespace has no such bundle; the bundle may have been split since it was read."""


class Conflict(Terminal):
    """The object exists but is in a state that forbids the request."""


class TopicExists(Conflict):
    """A topic of that name already exists."""


class SegmentBusy(Conflict):
    """The segment is part of a live operation."""


class TopicNotLive(Conflict):
    """The topic is being created or deleted, or is gone."""


class UnmanagedLog(Conflict):
    """A log of this name exists that no operation of this journal created."""


class WorkerNameInUse(Conflict):
    """Another running worker process has the name; each worker needs a name of its own."""


class AccessDenied(Terminal):
    """The token is missing or not valid."""


class AccessForbidden(Terminal):
    """The token is valid but does not permit the request."""


class AlreadyStored(Conflict):
    """The application's results already contain these messages: roll back, and acknowledge the messages."""


class DataGone(Terminal):
    """Messages after the reader's position were deleted, or may have been, so continuing would skip them without
    notice. Also raised if no gate can be closed in front of a log's messages.
    """


class FencedOut(Terminal):
    """Another process replaced this one, which may not write any longer: a runner's claim term has been superseded, a
    worker lost a shard lease, or another consumer took the consumer's name or bucket. Close the consumer.
    """


class Unsupported(Terminal):
    """The data plane cannot do this; the message says which data plane and what it can do."""


class InvariantViolated(Terminal):
    """An invariant of the model does not hold, which is never expected; the message names the invariant and the values."""
