"""Where a subscription is to go on from: an instant, the first message that is there, or behind the last one; a group that keeps
its own places from wherever these say.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown

_FIRST_MS = 0
_KEPT = "kept"
_LAST_MS = 4_000_000_000_000
"""The year 2096: nothing that anybody means is later."""


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """`instant_ms` (milliseconds since the Unix epoch): from the first message that was published then or later. None: everything
    up to now is skipped.
    """

    instant_ms: int | None
    is_kept: bool = False
    """No cursor moves: the members of a checkpoint group look anew where they have kept to be, in every segment that there is."""

    @property
    def sought(self) -> int | str | None:
        """As the journal keeps it."""
        return _KEPT if self.is_kept else self.instant_ms

    def __post_init__(self) -> None:
        if self.instant_ms is not None and not _FIRST_MS <= self.instant_ms <= _LAST_MS:
            raise InvalidInput(
                f"instant {self.instant_ms} ms is no time of a message; give 0 to {_LAST_MS}, or latest to skip everything"
            )

    @property
    def sentence(self) -> str:
        """As people say it."""
        if self.is_kept:
            return "where its kept checkpoints say"
        if self.instant_ms is None:
            return "behind everything published so far"
        if self.instant_ms == _FIRST_MS:
            return "to the first message that is there"
        instant = datetime.fromtimestamp(self.instant_ms / 1000, UTC)
        return f"to the first message published at {instant.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} or later"


EARLIEST, LATEST, KEPT = SeekTarget(_FIRST_MS), SeekTarget(None), SeekTarget(None, is_kept=True)


def parse_seek_target(text: str) -> SeekTarget:
    """`earliest`, `latest`, `kept`, or an instant in ISO 8601 with its offset (`2026-11-22T10:00:00Z`). Raises InvalidInput."""
    named = {"earliest": EARLIEST, "latest": LATEST, _KEPT: KEPT}.get(text.lower())
    if named is not None:
        return named
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise InvalidInput(
            f"{shown(text)} is nowhere to go on from: write earliest, latest, or an instant with its offset such as "
            "2026-11-22T10:00:00Z"
        )
    return SeekTarget(int(instant.timestamp() * 1000))
