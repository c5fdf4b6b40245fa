"""Reads the inputs of a replay from history with a reader's login: the decision log, layouts, aggregation runs and recorded rates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from controller.clock import to_datetime, to_ms
from controller.domain.decision import Lane
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.hash_range import HashRange
from controller.questions.evaluations import stored_answer
from controller.questions.question import read_view
from controller.services.history_replay import Decided, Retraced, SegmentLife, retrace, windows_of
from controller.settings import Settings

_LIFE = "segment_id, range_start, range_end, parents, created_at, sealed_at"
_OF_TOPIC = "topic_id = :topic_id"
_APPLIED = "applied_at BETWEEN :since AND CAST(:until AS timestamptz) + interval '1 day'"
_LEAST_BEFORE_MS = 3_600_000
"""Minimum time of history that is read before the first decision, because load records and load memory depend on earlier rates."""


def retraced(tx: Connection, settings: Settings, rows: Sequence[Mapping[str, Any]]) -> Iterator[Retraced]:
    """Replay these rows of `inspect.decision_inputs`, which belong to one topic, from the recorded rates. Yield the results in the order
    of time; nothing for no rows.

    `rows` must be in the order of time. History is read from at least an hour, and twice the load memory, before the first decision, but
    not from before the topic's creation. If it does not reach back to the creation, the first decision whose inputs can be read only starts
    the replay, and is not yielded. A decision whose inputs cannot be read is yielded as unreadable, and never starts the replay.
    """
    from controller.landing.history import (
        RateHistory,
    )  # imports pyarrow, which no other command that reads needs

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
    [topic] = read_view(tx, "inspect.topics", _OF_TOPIC, columns="created_at", topic_id=topic_id)
    created_ms = to_ms(topic["created_at"])
    from_ms = max(created_ms, decisions[0].decided_at - _before_ms(decisions))
    to = decisions[-1].decided_at
    until = rows[-1]["decided_at"]
    runs = read_view(tx, "inspect.load_runs", _APPLIED, since=to_datetime(from_ms), until=until)
    applied = {to_ms(run["window_end"]): to_ms(run["applied_at"]) for run in runs}
    ends = [*applied, from_ms, to]
    windows = windows_of(
        RateHistory(settings.history_location), topic_id, min(from_ms, *ends), max(ends), applied
    )
    yield from retrace(
        decisions,
        windows,
        _segments(tx, topic_id),
        begins_with_the_topic=from_ms == created_ms,
        window_ms=round(settings.rate_window_seconds * 1000),
    )


def _before_ms(decisions: Iterable[Decided]) -> int:
    """Return the time of history, in milliseconds, to be read before the first decision: twice the load memory of the first decision whose
    inputs can be read, and at least `_LEAST_BEFORE_MS`.
    """
    inputs = (decided.read_inputs() for decided in decisions)
    policies = (situation.policy for situation in inputs if isinstance(situation, EvaluationInput))
    memory_seconds = next((policy.load_memory_seconds for policy in policies), 0)
    return max(_LEAST_BEFORE_MS, 2_000 * memory_seconds)


def _segments(tx: Connection, topic_id: int) -> dict[int, SegmentLife]:
    """Return all segments that the topic ever had, by id."""
    return {
        row["segment_id"]: SegmentLife(
            HashRange(row["range_start"], row["range_end"]),
            tuple(row["parents"]),
            to_ms(row["created_at"]),
            None if row["sealed_at"] is None else to_ms(row["sealed_at"]),
        )
        for row in read_view(tx, "inspect.segments", _OF_TOPIC, columns=_LIFE, topic_id=topic_id)
    }
