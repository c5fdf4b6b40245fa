"""The journal, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.entrypoints.reach.columns import OPERATION, STUCK_OPERATION
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpOperations:
    """See `port.Operations`."""

    calls: Calls

    def list(self, *, topic: str | None, live: bool, limit: int) -> Sequence[Row]:
        """See `port.Operations`."""
        return self._rows(OPERATION, topic=topic, live=live, limit=limit)

    def stuck(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Operations`."""
        return self._rows(STUCK_OPERATION, topic=topic, stuck=True, limit=limit)

    def _rows(
        self, columns: tuple[str, ...], *, topic: str | None, limit: int, **only: bool
    ) -> Sequence[Row]:
        which = {name: "true" for name, is_wanted in only.items() if is_wanted}
        rows = self.calls.every(f"{API}/operations", topic=topic, limit=limit, **which)
        for row in rows:
            row["children"] = [one["segment_id"] for one in row["creates"]]
        return [chosen(row, columns) for row in rows]
