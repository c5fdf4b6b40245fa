"""Candidates of policy, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controller.entrypoints.reach.columns import CANDIDATE
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpCandidates:
    """See `port.Candidates`."""

    calls: Calls

    def list(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Candidates`."""
        rows = self.calls.every(f"{API}/policies/candidates", limit=limit, topic=topic)
        return [chosen(row, CANDIDATE) for row in rows]
