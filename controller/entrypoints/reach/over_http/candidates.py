"""Candidates of policy, asked of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.client.servers import topic_path
from controller.entrypoints.candidate_desk import JudgedCandidate, ProposedCandidate
from controller.entrypoints.reach.columns import CANDIDATE
from controller.entrypoints.reach.over_http.calls import (
    API,
    BACKTEST_SECONDS,
    Calls,
    chosen,
    told,
    with_instants,
)
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpCandidates:
    """See `port.Candidates`."""

    calls: Calls

    def list(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Candidates`."""
        rows = self.calls.every(f"{API}/policies/candidates", limit=limit, topic=topic)
        return [chosen(row, CANDIDATE) for row in rows]

    def propose(
        self, topic: str, knobs: Mapping[str, Any], *, reason: str, dry_run: bool
    ) -> ProposedCandidate:
        """See `port.Candidates`."""
        said = {"knobs": dict(knobs), "reason": reason}
        answer = self.calls.change("POST", _path(topic), said, dry_run)
        return ProposedCandidate(_candidate(answer), told(answer, "was_there"))

    def withdraw(self, topic: str, *, reason: str, dry_run: bool) -> Row:
        """See `port.Candidates`."""
        return _candidate(self.calls.change("DELETE", _path(topic), {"reason": reason}, dry_run))

    def promote(self, topic: str, *, days: int, dry_run: bool) -> JudgedCandidate:
        """See `port.Candidates`. Raises InvalidInput for more days than a server weighs."""
        path = f"{_path(topic)}/promote"
        answer = self.calls.change("POST", path, {"days": days}, dry_run, answer_seconds=BACKTEST_SECONDS)
        return JudgedCandidate(
            _candidate(answer),
            *(told(answer, name) for name in ("is_better", "sentence", "had_ended", "results")),
        )


def _candidate(answer: Any) -> Row:
    return with_instants(told(answer, "candidate"))


def _path(topic: str) -> str:
    return f"{topic_path(topic)}/candidate"
