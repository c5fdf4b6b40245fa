"""Limits the requests in progress: in all, and for each token subject. Less important requests are refused first.

Every request takes a slot once its body has arrived, and returns the slot when it is answered; a stream holds its slot until it ends. The
fewer slots are free, the fewer kinds of requests are admitted: watches are refused first, heartbeats last. Each subject's share follows the
same rule, so an application's watches leave slots for its own sessions.

A large body occupies memory from the beginning of its arrival, before its request has a slot, so its bytes have limits of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import MappingProxyType

from starlette.types import ASGIApp, Receive, Scope, Send

from controller.domain.errors import StoreUnavailable
from controller.domain.formatting import shown
from controller.web.paths import CONSUMER_PATH

_AGAIN_SECONDS = 1.0
_ONE_SUBJECT_OF = 4
"""A subject may hold one of so many parts of the slots if the operator has set no limit."""
SMALL_BODY_BYTES = 64 * 1024
"""Size up to which a body has no limit besides that of connections and slots; all bodies of heartbeats are smaller."""
MOST_BYTES, MOST_BYTES_OF_SUBJECT = 64 * 1024 * 1024, 16 * 1024 * 1024
"""Limits for the bytes of all larger bodies that arrive or are processed."""


class Use(Enum):
    """Kind of request that uses a slot."""

    WATCH = "watches"
    CALL = "requests"
    SESSION = "consumers' streams"
    HEARTBEAT = "consumers' requests"


_ADMITTED_BELOW: Mapping[Use, float] = MappingProxyType(
    {Use.WATCH: 0.5, Use.CALL: 0.75, Use.SESSION: 0.875, Use.HEARTBEAT: 1.0}
)
"""Share of all slots that may be in use when a request of this kind takes one more."""


def use_of(path: str) -> Use:
    """Return the kind of request that a route serves. `path` is the path of the route, with its parameters in braces."""
    if path.startswith(CONSUMER_PATH):
        return Use.SESSION if path.endswith("/assignment") else Use.HEARTBEAT
    return Use.WATCH if path.endswith("/watch") else Use.CALL


class Slots:
    """The slots of one app. Only for the event loop's thread."""

    def __init__(self, limit: int, limit_of_subject: int | None = None) -> None:
        """Create `limit` free slots. A subject may hold at most `limit_of_subject` slots, and never more than
        `limit`. If `limit_of_subject` is None or 0, a subject may hold a quarter of the slots, at least 1.
        """
        self._most = limit
        self._most_of_subject = min(limit, limit_of_subject or max(1, limit // _ONE_SUBJECT_OF))
        self._taken = 0
        self._taken_by: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()

    @contextmanager
    def body(self, subject: str, size: int) -> Iterator[None]:
        """Count the announced bytes of a body of the subject while the block lasts, unless the body is small. Raises StoreUnavailable, and
        counts nothing, if the bytes of all large bodies would exceed `MOST_BYTES`, or those of the subject `MOST_BYTES_OF_SUBJECT`.
        """
        if size <= SMALL_BODY_BYTES:
            yield
            return
        of_subject = self._bytes_of[subject] + size
        if of_subject > MOST_BYTES_OF_SUBJECT or self._bytes_of.total() + size > MOST_BYTES:
            whose = f" of {shown(subject)}" if of_subject > MOST_BYTES_OF_SUBJECT else ""
            raise StoreUnavailable(
                f"this worker already receives large bodies{whose} and accepts no more of {size} bytes; send it again, or ask another worker",
                _AGAIN_SECONDS,
            )
        self._bytes_of[subject] = of_subject
        try:
            yield
        finally:
            self._bytes_of[subject] -= size
            if not self._bytes_of[subject]:
                del self._bytes_of[subject]

    def take(self, subject: str, use: Use) -> None:
        """Take a slot for the subject, which holds the slot until `give_back`. Each kind of request may use only the
        share `_ADMITTED_BELOW` of the slots. Raises StoreUnavailable, and takes no slot, if this share of all slots
        is in use, or if the subject uses this share of the slots that a subject may hold.
        """
        if self._taken >= _below(self._most, use):
            raise StoreUnavailable(
                f"this worker already serves {self._taken} requests and streams and accepts no more {use.value}; ask another worker, or "
                "raise CLEAVE_SERVE_CONNECTIONS",
                _AGAIN_SECONDS,
            )
        if self._taken_by[subject] >= _below(self._most_of_subject, use):
            raise StoreUnavailable(
                f"this worker already serves {self._taken_by[subject]} requests and streams of {shown(subject)} and accepts no more of "
                f"its {use.value}; end some, ask another worker, or raise CLEAVE_SERVE_CONNECTIONS_OF_SUBJECT",
                _AGAIN_SECONDS,
            )
        self._taken += 1
        self._taken_by[subject] += 1

    def give_back(self, subject: str) -> None:
        """Free a slot that the subject holds. The caller makes sure that the subject holds one."""
        self._taken -= 1
        self._taken_by[subject] -= 1
        if not self._taken_by[subject]:
            del self._taken_by[subject]


class GivesBack:
    """Middleware that returns the slot of each request when the request is answered or its client has disconnected."""

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self._app, self._slots = app, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app. Afterwards, also after an error, free the slot that the request took, and count the
        connection again among the connections without an admitted request (`Lobby`). A request that took no slot
        changes neither.
        """
        state = scope.setdefault("state", {})
        try:
            await self._app(scope, receive, send)
        finally:
            subject = state.pop("slot_of", None)
            if subject is not None:
                self._slots.give_back(subject)
                if "connection" in state:
                    state["connection"].release()


def _below(limit: int, use: Use) -> int:
    """Return the number of slots in use, of `limit`, from which on requests of this kind are refused; at least 1."""
    return max(1, int(limit * _ADMITTED_BELOW[use]))
