"""Notifications of PostgreSQL, and the ids in their payloads. Every login of the database may send any payload on any channel, so a payload is outside text.

A receiver reads it through `ids`, which takes the numbers of a payload and nothing else. Listeners ignore a notification that is not
legible.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.domain.whole_numbers import from_digits

RESYNC = "resync"
NAMES = frozenset({"cleave_topics"})
"""Channels whose payload is a name, which receivers compare and never read."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A payload that arrived on a channel; `is_resync` says that notifications may have been missed before it."""

    channel: str
    payload: str
    sender: int = field(default=0, compare=False)
    """The server process whose transaction sent it, as `engine.server_process` says."""

    @property
    def is_resync(self) -> bool:
        """True for the start of a connection, which is no notification: look at everything."""
        return self.channel == RESYNC

    @property
    def ids(self) -> tuple[int, ...]:
        """The numbers of a payload such as `17` or `17:4`; none for any other payload."""
        numbers = [from_digits(part) for part in self.payload.split(":", 2)]
        known = tuple(one for one in numbers if one is not None)
        return known if len(known) == len(numbers) <= 2 else ()

    @property
    def first_id(self) -> int | None:
        """The topic, shard or log that the payload names first; None where it names none."""
        return next(iter(self.ids), None)

    @property
    def is_legible(self) -> bool:
        """True if Cleave itself sends such a payload on such a channel: numbers, a name, or nothing at all."""
        return not self.payload or self.channel in NAMES or bool(self.ids)
