"""The autoscaler: drains topics whose answer may have changed, decides, and writes intents and the ledger.

Airflow's split and merge passes and the worker's loop call `run_pass`, each with its lanes. It never touches a data
plane: what it decides becomes a row of the journal, which an operation runner carries out. A batch of topics is one
transaction. In it the drained rows are held, so that no input changes under a decision; before it acts on a topic it
takes that topic's row if nobody else has it, and decides again if something was committed or intended in between.
So a decision, its ledger row and its operations stand or fall together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from controller import metrics
from controller.dataplane.base import DataPlane
from controller.domain.decision import Lane, lane_of
from controller.services.autoscaler.batch import ACTING_TOPICS, Batch
from controller.services.autoscaler.batch_topic import Course, TopicOutcome
from controller.store.decisions import evaluations
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

__all__ = ["PassResult", "TopicOutcome", "run_pass"]

BATCH_TOPICS = 500
"""Topics in one transaction. A change to one of them meanwhile (a consumer registers) waits for its end."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass did. `left` are topics that stay dirty: another process was at work on them, or they are paused."""

    evaluated: int
    outcomes: tuple[TopicOutcome, ...]
    left: tuple[int, ...]

    @property
    def intents(self) -> tuple[int, ...]:
        """The operations intended."""
        return tuple(operation_id for outcome in self.outcomes for operation_id in outcome.operation_ids)


def run_pass(
    store: Store,
    planes: Mapping[str, DataPlane],
    lanes: Collection[Lane],
    *,
    decided_by: str,
    limit: int,
    shards: Shards | None = None,
    topic_ids: Collection[int] | None = None,
    fence: Callable[[Connection], None] | None = None,
    batch_topics: int = BATCH_TOPICS,
    dry_run: bool = False,
) -> PassResult:
    """Evaluate up to `limit` topics that are dirty or due for the lanes.

    `fence` is called first in each transaction and raises when this process may no longer act. A dry run writes
    nothing, and looks at the topics named whether they are dirty or not. Raises Retryable when PostgreSQL is away
    or a batch met a deadlock; batches before it have been committed.
    """
    evaluated, outcomes, left, passed = 0, list[TopicOutcome](), list[int](), list[int]()
    size = batch_topics
    while len(passed) < limit:
        wanted = min(size, limit - len(passed))
        with store.transaction() as tx:
            if fence is not None:
                fence(tx)
            if dry_run and topic_ids is not None:
                pending = [p for p in evaluations.read(tx, topic_ids) if p.topic_id not in passed]
            else:
                pending = evaluations.drain(
                    tx,
                    lanes=lanes,
                    limit=wanted,
                    shards=shards,
                    topic_ids=topic_ids,
                    skip=passed if dry_run else left,
                )
            batch = Batch(tx, planes, frozenset(lanes), decided_by, pending)
            batch.evaluate(batch.topics)
            if not dry_run:
                batch.act()
        if not dry_run:
            batch.log_outcomes()
        postponed = batch.on_course(Course.POSTPONED)
        passed += batch.topics.keys() - set(postponed)
        left += batch.on_course(Course.LEFT, Course.PAUSED)
        # Where many act, a full batch would be read again and again for the few it may act on.
        size = min(batch_topics, 2 * ACTING_TOPICS) if postponed else batch_topics
        evaluated += sum(topic.evaluation is not None for topic in batch.topics.values())
        outcomes += [topic.outcome() for topic in batch.new_topics()]
        if len(pending) < wanted and not postponed:
            break  # that was all there is
    _count(outcomes)
    return PassResult(evaluated, tuple(outcomes), tuple(left))


def _count(outcomes: Sequence[TopicOutcome]) -> None:
    for outcome in outcomes:
        if outcome.decision_id is None:
            continue
        for act in outcome.evaluation.decisions:
            metrics.DECISIONS.labels(lane_of(act).value, type(act).__name__.lower()).inc()
        for refusal in outcome.evaluation.refusals:
            metrics.REFUSALS.labels(refusal.lane.value if refusal.lane else "all", refusal.reason.value).inc()
