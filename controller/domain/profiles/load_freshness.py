"""Freshness of load: a load record that is older than the policy's `load_stale_after_seconds` is stale, and nothing is decided on it.

Pulsar has no such rule, so no load record is stale under `strict_pulsar`. An evaluation that relies on a fresh load record is valid until
the load record becomes stale.
"""

from __future__ import annotations

from controller.domain.decision import Lane, Refusal, RefusalReason
from controller.domain.load_record import LoadRecord
from controller.domain.profiles.evaluation_context import EvaluationContext


def is_stale(context: EvaluationContext, record: LoadRecord) -> bool:
    """Return True if the load record is too old to decide on; never under `strict_pulsar`."""
    return not context.strict and context.now - record.observed_at > context.stale_ms


def wake_when_stale(context: EvaluationContext, record: LoadRecord | None) -> None:
    """Limit the validity of the evaluation to the time until which this load record is fresh. Does nothing without a
    record, under `strict_pulsar`, or for a load record that is stale already.
    """
    if record is not None and not context.strict:
        context.wake_at(record.observed_at + context.stale_ms + 1)


def refuse_stale(context: EvaluationContext, lane: Lane, index: int, other_id: int | None = None) -> bool:
    """Add a refusal of the segment at `index` to the context and return True if its load record is stale. Otherwise
    limit the validity of the evaluation to the time at which the load record becomes stale, and return False. Without a
    record, and under `strict_pulsar`, only return False. `other_id`, the neighbour of a pair, is only named in the
    refusal.
    """
    record = context.records[index]
    if record is None:
        return False
    if not is_stale(context, record):
        wake_when_stale(context, record)
        return False
    observed_at = record.observed_at
    context.refuse(
        Refusal(
            segment_id=context.active[index].segment_id,
            lane=lane,
            reason=RefusalReason.STALE_LOAD,
            metric="observed_at",
            value=observed_at,
            needed=observed_at + context.stale_ms,
            other_id=other_id,
        )
    )
    return True
