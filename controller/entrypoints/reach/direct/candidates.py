"""Candidates of policy, read, weighed and changed in the database, in the name of whoever runs this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.actions.dry_run import stage
from controller.actions.waiting import user_name
from controller.bootstrap import application
from controller.entrypoints import candidate_desk
from controller.entrypoints.candidate_desk import JudgedCandidate, ProposedCandidate
from controller.entrypoints.reach.columns import CANDIDATE
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading
from controller.services import policy_candidates
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

    def propose(
        self, topic: str, knobs: Mapping[str, Any], *, reason: str, dry_run: bool
    ) -> ProposedCandidate:
        """See `port.Candidates`."""
        override = candidate_desk.override_of(knobs)
        with application() as cleave, stage(cleave, dry_run) as store:
            made = policy_candidates.propose(store, topic, override, actor=user_name(), reason=reason)
        return ProposedCandidate(candidate_desk.document(topic, made.candidate), made.was_there)

    def withdraw(self, topic: str, *, reason: str, dry_run: bool) -> Row:
        """See `port.Candidates`."""
        with application() as cleave, stage(cleave, dry_run) as store:
            found = policy_candidates.withdraw(store, topic, actor=user_name(), reason=reason)
        return candidate_desk.document(topic, found)

    def promote(self, topic: str, *, days: int, dry_run: bool) -> JudgedCandidate:
        """See `port.Candidates`."""
        with application() as cleave, stage(cleave, dry_run) as store:
            return candidate_desk.judge(
                replace(cleave, store=store),
                topic,
                days=days,
                actor=user_name(),
                request_key=f"cli-{os.urandom(8).hex()}",
                dry_run=dry_run,
            )
