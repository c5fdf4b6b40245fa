"""The ledger, read in the database, and topics as they would be decided on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.bootstrap import application
from controller.clock import to_ms
from controller.domain.errors import NotFound
from controller.domain.situation import Situation
from controller.entrypoints.reach.columns import DECISION, INPUTS
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading
from controller.questions import evaluations
from controller.services import what_if
from controller.store.postgres import inspection
from controller.store.postgres.clock import database_now
from controller.store.topics import inspected

_DECISIONS = f"""
    SELECT {", ".join(DECISION)} FROM inspect.decisions
     WHERE CAST(:topic AS text) IS NULL OR topic = :topic ORDER BY decided_at DESC LIMIT :limit"""  # noqa: S608 - as below
_WHY_NOT = """
    SELECT * FROM inspect.why_not
     WHERE CAST(:topic AS text) IS NULL OR topic = :topic
     ORDER BY decided_at DESC, topic, lane, segment_id NULLS FIRST, other_id NULLS FIRST, reason LIMIT :limit"""
_ONE = f"SELECT {', '.join(INPUTS)} FROM inspect.decision_inputs WHERE decision_id = :decision_id"  # noqa: S608
_ALL = f"""
    SELECT {", ".join(INPUTS)} FROM inspect.decision_inputs
     WHERE topic = :topic AND decision_id > :after AND decided_at >= :since AND decided_at < :until
     ORDER BY decision_id LIMIT :limit"""  # noqa: S608
_PAGE = 500
"""Decisions read at once: each has its whole situation, some 10 KB."""


class DirectDecisions:
    """See `port.Decisions`."""

    def list(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Decisions`."""
        with reading() as tx:
            name = None if topic is None else inspected.demand_known(tx, topic)
            return inspection.rows(tx, _DECISIONS, topic=name, limit=limit)

    def left_alone(self, *, topic: str | None, limit: int) -> Sequence[Row]:
        """See `port.Decisions`."""
        with reading() as tx:
            name = None if topic is None else inspected.demand_known(tx, topic)
            rows = inspection.rows(tx, _WHY_NOT, topic=name, limit=limit)
            now = to_ms(database_now(tx))
        return [evaluations.refusal_row(row, now) for row in rows]

    def inputs(self, decision_id: int) -> Row:
        """See `port.Decisions`."""
        with reading() as tx:
            found = inspection.rows(tx, _ONE, decision_id=decision_id)
        if not found:
            raise NotFound(
                f"decision {decision_id} is not in the ledger, or its day has been dropped; `cleave decisions` lists them"
            )
        return found[0]

    def ledger(self, topic: str, since: datetime, until: datetime) -> Iterator[Row]:
        """See `port.Decisions`. Of one snapshot."""
        with reading() as tx:
            asked = {"topic": inspected.demand_known(tx, topic), "since": since, "until": until}
            after = -1
            while page := inspection.rows(tx, _ALL, **asked, after=after, limit=_PAGE):
                yield from page
                after = page[-1]["decision_id"]

    def situations(self, topic: str, changes: Mapping[str, Any]) -> tuple[Situation, Situation]:
        """See `port.Decisions`."""
        with application() as cleave:
            return what_if.situations_of(cleave.store, cleave.planes, topic, changes)
