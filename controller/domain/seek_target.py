"""The target of a seek: an instant, the first existing message, the end of all messages, or the checkpoints that a group
keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown

_FIRST_MS = 0
_KEPT = "kept"
_LAST_MS = 4_000_000_000_000
"""The year 2096, later than any instant that a user can mean."""


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """The position from which a subscription continues. `instant_ms` (milliseconds since the Unix epoch): the first
    message published at this time or later. None: all messages published so far are skipped, or, with `is_kept`, no
    cursor moves. Raises InvalidInput at construction for an instant before 1970 or after 2096.
    """

    instant_ms: int | None
    is_kept: bool = False
    """True if no cursor moves: the members of a checkpoint group read their stored positions again, in every segment.
    """

    @property
    def sought(self) -> int | str | None:
        """The value that the journal stores: `instant_ms`, or the word `kept` if no cursor moves. None for a seek past
        all messages.
        """
        return _KEPT if self.is_kept else self.instant_ms

    def __post_init__(self) -> None:
        if self.instant_ms is not None and not _FIRST_MS <= self.instant_ms <= _LAST_MS:
            raise InvalidInput(
                f"instant {self.instant_ms} ms is not the time of a message; give 0 to {_LAST_MS}, or latest to skip everything"
            )

    @property
    def sentence(self) -> str:
        """The target in words for messages, such as `past everything published so far`; an instant in UTC with
        milliseconds.
        """
        if self.is_kept:
            return "to its stored checkpoints"
        if self.instant_ms is None:
            return "past everything published so far"
        if self.instant_ms == _FIRST_MS:
            return "to the first message that still exists"
        instant = datetime.fromtimestamp(self.instant_ms / 1000, UTC)
        return f"to the first message published at {instant.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} or later"


EARLIEST, LATEST, KEPT = SeekTarget(_FIRST_MS), SeekTarget(None), SeekTarget(None, is_kept=True)


def parse_seek_target(text: str) -> SeekTarget:
    """Return the target that the text names: `earliest`, `latest`, `kept` (in any case), or an instant in ISO 8601 with
    its offset (`2026-11-22T10:00:00Z`). Raises InvalidInput for another text, and for an instant before 1970 or after
    2096. The instant is cut to milliseconds; the first instant of 1970 is `earliest`.
    """
    named = {"earliest": EARLIEST, "latest": LATEST, _KEPT: KEPT}.get(text.lower())
    if named is not None:
        return named
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise InvalidInput(
            f"{shown(text)} is not a position; write earliest, latest, kept, or an instant with its offset such as "
            "2026-11-22T10:00:00Z"
        )
    return SeekTarget(floor(instant.timestamp() * 1000))
