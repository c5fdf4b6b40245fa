"""What a topic's decisions are retraced from, read through a reader's login: the ledger, layouts, runs, and the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from controller.clock import to_datetime, to_ms
from controller.domain.decision import Lane
from controller.domain.layout import SegmentLayout
from controller.domain.situation import Situation
from controller.landing.history import RateHistory
from controller.services.retrace import Decided, Retraced, retrace, windows_of
from controller.settings import Settings
from controller.store.postgres import inspection
from controller.store.topics import inspected

_TOPIC = """
    SELECT topic_id, created_at FROM inspect.topics WHERE topic_id = :topic_id"""
_RUNS = """
    SELECT window_end, applied_at FROM inspect.load_runs
     WHERE applied_at BETWEEN :since AND CAST(:until AS timestamptz) + interval '1 day'"""
_EPOCHS = """
    SELECT epoch, committed_at FROM inspect.layout_changes
     WHERE topic_id = :topic_id AND committed_at <= :until ORDER BY epoch"""
_LEAST_BEFORE_MS = 3_600_000
"""So much of the history before the first decision is read at least: records and memories need a past."""


def stored_answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluation that a row of `inspect.decision_inputs` holds."""
    valid_until = row["valid_until"]
    return {
        "decisions": row["decisions"],
        "refusals": row["refusals"],
        "valid_until": None if valid_until is None else to_ms(valid_until),
    }


def retraced(
    tx: Connection, settings: Settings, name: str, rows: Sequence[Mapping[str, Any]]
) -> Iterator[Retraced]:
    """These rows of `inspect.decision_inputs`, in the order of time, each made again from the recorded history."""
    if not rows:
        return
    decisions = [
        Decided(
            row["decision_id"],
            to_ms(row["decided_at"]),
            frozenset(map(Lane, row["lanes"])),
            row["situation"],
            stored_answer(row),
        )
        for row in rows
    ]
    topic_id = rows[-1]["topic_id"]
    [topic] = inspection.rows(tx, _TOPIC, topic_id=topic_id)
    created_ms = to_ms(topic["created_at"])
    before_ms = max(
        _LEAST_BEFORE_MS, 2_000 * Situation.from_json(decisions[0].situation).policy.load_memory_seconds
    )
    from_ms = max(created_ms, decisions[0].decided_at - before_ms)
    to = decisions[-1].decided_at
    until = rows[-1]["decided_at"]
    runs = inspection.rows(tx, _RUNS, since=to_datetime(from_ms), until=until)
    applied = {to_ms(run["window_end"]): to_ms(run["applied_at"]) for run in runs}
    ends = [*applied, from_ms, to]
    windows = windows_of(
        RateHistory(settings.history_location), topic_id, min(from_ms, *ends), max(ends), applied
    )
    yield from retrace(
        decisions,
        windows,
        _layouts(tx, name, topic_id, until),
        begins_with_the_topic=from_ms == created_ms,
        window_ms=round(settings.rate_window_seconds * 1000),
    )


def _layouts(tx: Connection, name: str, topic_id: int, until: Any) -> list[tuple[int, SegmentLayout]]:
    topic = inspected.find_topic(tx, name)
    changes = inspection.rows(tx, _EPOCHS, topic_id=topic_id, until=until)
    return [
        (to_ms(change["committed_at"]), inspected.layout_at(tx, topic, change["epoch"])) for change in changes
    ]
