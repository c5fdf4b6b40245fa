"""The one tree of errors; every floor raises from here and every edge maps from here.

Drawn::

    CleaveError
    ├── Retryable(delay_seconds)      try again after the delay; nothing is wrong with the request
    │   ├── LostRace                  a row or input version moved under us; re-read and decide again
    │   │   ├── HeldUp                somebody else has to finish first; nothing was lost, look again
    │   │   └── LogShortened          (client side) a log lost its last messages; open a new reader
    │   ├── DataPlaneUnavailable      a call failed or was refused for now
    │   │   └── DataPlaneTimeout      no answer in time; the act may or may not have happened
    │   ├── StoreUnavailable          PostgreSQL is away; at a client: no worker answers, or PostgreSQL is away
    │   │   ├── TokenOutOfTime        the token has run out or is not valid yet (REST 401): send a fresh one
    │   │   └── StoreRefused          it refuses the login, or has no such database: a command ends with exit 2
    │   ├── LimitReached              as much is being computed as may be at once; ask again later (REST 429)
    │   ├── TopicHeld                 the topic's logs have to be compared with the journal, or are ahead of it
    │   ├── SegmentTerminated         (client side) the segment is fenced; look up the layout again
    │   └── SessionExpired            (client side) the consumer was away for too long; begin a new session
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
        │   ├── SegmentBusy           in a live operation
        │   ├── TopicNotLive
        │   ├── ForeignLog            another journal, or another program, created a log of this name
        │   ├── WorkerNameInUse       another process works under that name: a worker ends with exit 2
        │   └── AlreadyStored         (client side) the results hold these messages already: roll back
        ├── AccessDenied              no token, or one that is not valid (REST 401)
        ├── AccessForbidden           a valid token that is not for this (REST 403)
        ├── DataGone                  messages that a position stands before were deleted
        ├── FencedOut                 a stale runner, or a consumer that another one replaced
        ├── Unsupported               the data plane cannot do this; says which and what it can
        └── InvariantViolated         never expected: names the law and the values

Errors carry plain values only and survive pickling, since Airflow and Spark move them between
processes. A message names the thing, the value and the next move.
"""

from __future__ import annotations

from controller.domain.shown import printable


class CleaveError(Exception):
    """Root of everything Cleave raises on purpose; `str(error)` is always one line of printable characters."""

    def __init__(self, message: str) -> None:
        self.message = printable(" ".join(message.split()))
        super().__init__(self.message)


class Retryable(CleaveError):
    """Worth another try after `delay_seconds` (>= 0), with the same arguments."""

    def __init__(self, message: str, delay_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class LostRace(Retryable):
    """A row version or input version moved under us; re-read and decide again. `what` was to be written: a word for the metric."""

    def __init__(self, message: str, delay_seconds: float = 1.0, *, what: str = "row") -> None:
        super().__init__(message, delay_seconds)
        self.what = what


class HeldUp(LostRace):
    """Somebody else has to finish first. Nothing was lost; look again."""


class LogShortened(LostRace):
    """After a fail-over or a restore a log lacks messages that a reader was given. A new reader reads on where the log's history goes
    on.
    """

    resume: tuple[int, ...] | None = None
    """Position to go on after, for an application that keeps positions itself; None where the server keeps the position."""


class DataPlaneUnavailable(Retryable):
    """A call to the data plane failed or was refused for now."""


class DataPlaneTimeout(DataPlaneUnavailable):
    """The answer did not come in time; the act may or may not have happened, so look before repeating."""


class StoreUnavailable(Retryable):
    """PostgreSQL is away; for a client: no worker answers, or PostgreSQL is away."""


class StoreRefused(StoreUnavailable):
    """PostgreSQL refuses the login or has no such database. A loop tries on, since that is put right elsewhere; a
    command says what to correct.
    """


class TopicHeld(Retryable):
    """Nothing acts on the topic: its logs have to be compared with the journal first, or are ahead of the journal."""


class TokenOutOfTime(StoreUnavailable):
    """The token has run out or is not valid yet. A client sends a fresh token for as long as it bears an outage."""


class LimitReached(Retryable):
    """The limit of concurrent computations is reached, for one subject or for all. No computation began."""


class SegmentTerminated(Retryable):
    """The segment is fenced and takes no more entries; look up the layout again."""


class SessionExpired(Retryable):
    """The consumer was away for longer than its grace period, and what it read is with others. A new session may begin."""


class Terminal(CleaveError):
    """Repeating the same request gives the same answer."""


class InvalidInput(Terminal):
    """A value that can never be right."""


class InvalidRange(InvalidInput):
    """Not a hash range, or ranges that do not fit together."""


class InvalidLayoutChange(InvalidInput):
    """The layout refuses this split, merge, rebucket, re-cut, heal or prune."""


class InvalidPolicy(InvalidInput):
    """A parameter is out of bounds, or parameters valid apart are invalid together."""


class NotFound(Terminal):
    """The named thing does not exist."""


class TopicNotFound(NotFound):
    """No such topic."""


class SegmentNotFound(NotFound):
    """No such segment in the topic's layout, or none that covers the hash."""


class SubscriptionNotFound(NotFound):
    """No such subscription on the topic."""


class OperationNotFound(NotFound):
    """No such operation in the journal."""


class BundleNotFound(NotFound):
    """No such bundle in the namespace; it may have been split since it was read."""


class Conflict(Terminal):
    """The thing exists but is in a state that forbids the request."""


class TopicExists(Conflict):
    """A topic of that name exists already."""


class SegmentBusy(Conflict):
    """The segment is part of a live operation."""


class TopicNotLive(Conflict):
    """The topic is being created or deleted, or is gone."""


class ForeignLog(Conflict):
    """A log of this name exists that no operation of this journal created."""


class WorkerNameInUse(Conflict):
    """Another running worker process has the name; each worker needs a name of its own."""


class AccessDenied(Terminal):
    """No token, or one that is not valid."""


class AccessForbidden(Terminal):
    """A valid token that is not for this."""


class AlreadyStored(Conflict):
    """The application's results hold these messages already: roll back, and acknowledge them."""


class DataGone(Terminal):
    """Messages that a position stands before were deleted, so reading on would leave them out unnoticed."""


class FencedOut(Terminal):
    """Another process took the place of this one, which may write nothing more: of a runner the claim term has passed, of a consumer another
    one took the name or the bucket. Close the consumer.
    """


class Unsupported(Terminal):
    """The data plane cannot do this; the message says which one and what it can."""


class InvariantViolated(Terminal):
    """Never expected: a law of the model does not hold; the message names the law and the values."""
