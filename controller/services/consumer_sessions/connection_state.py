"""Who is there of a subscription's consumers, and of whom the rows are to say that they are not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controller.store.topics.consumers import ConsumerRow

AWAY_SECONDS = 2.0
"""A consumer that is back within it has been nowhere: a mere reconnection writes nothing."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Consumers that hold their streams open, and for how long others have not. Who is gone for a moment only is in neither: of
    such a consumer the row goes on saying what it says.
    """

    connected: Collection[str]
    away_seconds: Mapping[str, float]

    def to_note(self, rows: Mapping[str, ConsumerRow], attached: Collection[str]) -> dict[str, float | None]:
        """Of whom a row says something else: for how long the consumer has been away, or None for one that is back. Those in
        `attached` are back whatever was known of them.
        """
        back = {*self.connected, *attached}
        noted: dict[str, float | None] = {}
        for name, row in rows.items():
            if name in back:
                if row.away_seconds is not None:
                    noted[name] = None
            elif row.away_seconds is None and name in self.away_seconds:
                noted[name] = self.away_seconds[name]
        return noted
