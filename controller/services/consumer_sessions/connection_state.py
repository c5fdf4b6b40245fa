"""Connection state of a subscription's consumers, and which rows must record that a consumer is disconnected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controller.store.topics.consumers import ConsumerRow

AWAY_SECONDS = 2.0
"""Seconds within which a reconnection is not recorded."""


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """Names of the consumers that hold their streams open, and by name the seconds for which others have been
    disconnected. A consumer that was disconnected for less than `AWAY_SECONDS`, or has no session, is in neither, so
    that its row stays unchanged.
    """

    connected: Collection[str]
    away_seconds: Mapping[str, float]

    def row_changes(
        self, rows: Mapping[str, ConsumerRow], attached: Collection[str]
    ) -> dict[str, float | None]:
        """Return the changes of the rows' connection state, by consumer name: the seconds for which a consumer has been
        disconnected, or None for a consumer that is connected again. Rows that already record a disconnection are not
        updated while it lasts. Consumers in `attached` count as connected in any case.
        """
        present = {*self.connected, *attached}
        changes: dict[str, float | None] = {}
        for name, row in rows.items():
            if name in present:
                if row.away_seconds is not None:
                    changes[name] = None
            elif row.away_seconds is None and name in self.away_seconds:
                changes[name] = self.away_seconds[name]
        return changes
