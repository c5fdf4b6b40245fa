"""The autoscaler: drains topics whose evaluation may have changed, decides, and writes intents and the
decision log.

Airflow's split and merge passes and the worker's loop call `run_pass`, each with its lanes. The autoscaler
never calls a data plane: its decisions become rows of the journal, which an operation runner carries out. A
batch of topics is one transaction. The transaction locks the drained rows, so that no input changes during a
decision. Before it acts on a topic, it locks the topic's row unless another transaction holds it, and decides
again if another transaction changed the topic in between. So a decision, its row in the decision log and its
operations are committed or rolled back together.
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
"""Maximum number of topics in one transaction. A change to one of these topics, such as a new consumer, waits
for the end of the transaction.
"""


@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of a pass. `left` are topics that stay dirty, because another process was working on them or
    because they are paused.
    """

    evaluated: int
    outcomes: tuple[TopicOutcome, ...]
    left: tuple[int, ...]

    @property
    def intents(self) -> tuple[int, ...]:
        """Ids of the intended operations."""
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

    `fence` is called first in each transaction, and raises if this process must not act. A dry run writes
    nothing, and evaluates the topics of `topic_ids` even if they are not dirty. Raises Retryable if
    PostgreSQL is unavailable or a batch met a deadlock; earlier batches stay committed.
    """
    evaluated, outcomes, left, passed_ids = 0, list[TopicOutcome](), list[int](), list[int]()
    size = batch_topics
    while len(passed_ids) < limit:
        batch_limit = min(size, limit - len(passed_ids))
        with store.transaction() as tx:
            if fence is not None:
                fence(tx)
            if dry_run and topic_ids is not None:
                pending = [p for p in evaluations.read(tx, topic_ids) if p.topic_id not in passed_ids]
            else:
                pending = evaluations.lock_due(
                    tx,
                    lanes=lanes,
                    limit=batch_limit,
                    shards=shards,
                    topic_ids=topic_ids,
                    skip=passed_ids if dry_run else left,
                )
            batch = Batch(tx, planes, frozenset(lanes), decided_by, pending)
            batch.evaluate(batch.topics)
            if not dry_run:
                batch.act()
        if not dry_run:
            batch.log_outcomes()
        postponed = batch.on_course(Course.POSTPONED)
        passed_ids += batch.topics.keys() - set(postponed)
        left += batch.on_course(Course.LEFT, Course.PAUSED)
        # If many topics act, a full batch would be read repeatedly for the few topics it may act on.
        size = min(batch_topics, 2 * ACTING_TOPICS) if postponed else batch_topics
        evaluated += sum(topic.evaluation is not None for topic in batch.topics.values())
        outcomes += [topic.outcome() for topic in batch.new_topics()]
        if len(pending) < batch_limit and not postponed:
            break  # No further topics are pending.
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
