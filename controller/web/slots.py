"""Decides what is admitted while a worker is busy: how much one subject may hold, and what is refused first.

Every request of a token's holder takes a slot before its body is read, and gives it back when it is answered; a stream holds its slot
until it ends. The fuller the worker, the less it admits: watches first, heartbeats last. The same holds in each subject's share, so an
application's watches leave room for its own sessions too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from starlette.types import ASGIApp, Receive, Scope, Send

from controller.domain.errors import StoreUnavailable
from controller.domain.shown import shown
from controller.web.paths import CONSUMER_PATH

_AGAIN_SECONDS = 1.0
_ONE_SUBJECT_OF = 4
"""A subject may hold this part of the slots where the operator has not said how many."""


class Use(Enum):
    """Uses of a slot."""

    WATCH = "watches"
    CALL = "requests"
    SESSION = "consumers' streams"
    HEARTBEAT = "consumers' requests"


_ADMITTED_BELOW: Mapping[Use, float] = MappingProxyType(
    {Use.WATCH: 0.5, Use.CALL: 0.75, Use.SESSION: 0.875, Use.HEARTBEAT: 1.0}
)
"""The part of all slots that may be taken when one more is taken for that use."""


def use_of(path: str) -> Use:
    """Return the use of a slot by a route with this path."""
    if path.startswith(CONSUMER_PATH):
        return Use.SESSION if path.endswith("/assignment") else Use.HEARTBEAT
    return Use.WATCH if path.endswith("/watch") else Use.CALL


class Slots:
    """Of one app. For the event loop's thread."""

    def __init__(self, most: int, most_of_subject: int | None = None) -> None:
        """`most_of_subject`: None for a quarter of all."""
        self._most = most
        self._most_of_subject = min(most, most_of_subject or max(1, most // _ONE_SUBJECT_OF))
        self._taken = 0
        self._taken_by: Counter[str] = Counter()

    def take(self, subject: str, use: Use) -> None:
        """Take a slot. Raises StoreUnavailable while there is none for that use."""
        if self._taken >= _below(self._most, use):
            raise StoreUnavailable(
                f"this worker serves {self._taken} requests and streams already and takes no more {use.value}; ask another one, or "
                "raise CLEAVE_SERVE_CONNECTIONS",
                _AGAIN_SECONDS,
            )
        if self._taken_by[subject] >= _below(self._most_of_subject, use):
            raise StoreUnavailable(
                f"this worker serves {self._taken_by[subject]} requests and streams of {shown(subject)} already and takes no more of "
                f"its {use.value}; end some, ask another worker, or raise CLEAVE_SERVE_CONNECTIONS_OF_SUBJECT",
                _AGAIN_SECONDS,
            )
        self._taken += 1
        self._taken_by[subject] += 1

    def give_back(self, subject: str) -> None:
        """Give back a slot of the subject."""
        self._taken -= 1
        self._taken_by[subject] -= 1
        if not self._taken_by[subject]:
            del self._taken_by[subject]


class GivesBack:
    """Around the app: gives back the slot of each request when it is answered, or its client is gone."""

    def __init__(self, app: ASGIApp, slots: Slots) -> None:
        self._app, self._slots = app, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        try:
            await self._app(scope, receive, send)
        finally:
            subject = state.pop("slot_of", None)
            if subject is not None:
                self._slots.give_back(subject)
                if "connection" in state:
                    state["connection"].release()


def _below(most: int, use: Use) -> int:
    return max(1, int(most * _ADMITTED_BELOW[use]))
