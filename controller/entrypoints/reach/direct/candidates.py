"""Candidates of policy, read in the database."""

from __future__ import annotations

from collections.abc import Sequence

from controller.entrypoints.reach.columns import CANDIDATE
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading
from controller.store.postgres import inspection
from controller.store.topics import inspected

_CANDIDATES = f"""
    SELECT {", ".join(CANDIDATE)} FROM inspect.policy_candidates WHERE CAST(:topic AS text) IS NULL OR topic = :topic
     ORDER BY candidate_id DESC LIMIT :limit
"""  # noqa: S608 - constants only


class DirectCandidates:
    """See `port.Candidates`."""

    def list(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Candidates`."""
        with reading() as tx:
            if topic is not None:
                inspected.find_topic(tx, topic)
            return inspection.rows(tx, _CANDIDATES, topic=topic, limit=limit)
