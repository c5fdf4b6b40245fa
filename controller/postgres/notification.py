"""Notifications of PostgreSQL, and the ids in their payloads. Every login of the database may send any payload on any
channel, so a payload is outside text.

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
    """A payload that arrived on a channel. If `is_resync` is True, earlier notifications may have been lost."""

    channel: str
    payload: str
    sender: int = field(default=0, compare=False)
    """Id of the server process whose transaction sent the notification, as in `engine.server_process`."""

    @property
    def is_resync(self) -> bool:
        """True for the start of a connection, which is not a notification: the caller reads all tables."""
        return self.channel == RESYNC

    @property
    def ids(self) -> tuple[int, ...]:
        """The numbers of a payload such as `17` or `17:4`. Empty for any other payload."""
        numbers = [from_digits(part) for part in self.payload.split(":", 2)]
        ids = tuple(number for number in numbers if number is not None)
        return ids if len(ids) == len(numbers) <= 2 else ()

    @property
    def first_id(self) -> int | None:
        """Id of the topic, shard or log that the payload names first; None if it names none."""
        return next(iter(self.ids), None)

    @property
    def is_legible(self) -> bool:
        """True if Cleave sends payloads of this form on this channel: numbers, a name, or an empty text."""
        return not self.payload or self.channel in NAMES or bool(self.ids)
