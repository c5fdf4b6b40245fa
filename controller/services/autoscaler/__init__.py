"""The autoscaler: reads the topics that are due for an evaluation, because an input has changed or by time,
decides, and writes intents and the decision log.

Airflow's split and merge passes and the worker's loop call `run_pass`, each with its lanes. The autoscaler
never calls a data plane: its decisions become rows of the journal, which an operation runner carries out.

A batch of topics is one transaction. The transaction locks the evaluation rows of the batch, so that no input
changes during a decision. Before the batch acts on a topic, it locks the topic's row, and decides again if
another transaction changed the topic in between. A topic whose row another transaction has locked stays
due. So a decision, its row in the decision log and its operations are committed or rolled back together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from controller import metrics, telemetry
from controller.dataplane.base import DataPlane
from controller.domain.decision import Lane, lane_of
from controller.services.autoscaler.batch import ACTING_TOPICS, Batch
from controller.services.autoscaler.batch_topic import TopicOutcome, Treatment
from controller.store.decisions import evaluations
from controller.store.postgres.engine import Store
from controller.store.shards import Shards

log = telemetry.get_logger(__name__)

__all__ = ["PassResult", "TopicOutcome", "run_pass"]

BATCH_TOPICS = 500
"""Maximum number of topics in one transaction. A change to one of these topics, such as a new consumer, waits
for the end of the transaction.
"""


@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of a pass."""

    evaluated: int
    """Number of evaluations, without topics that were then paused, postponed or in use. A topic that two batches
    evaluated counts twice.
    """
    outcomes: tuple[TopicOutcome, ...]
    """The topics that act, propose, or whose refusals differ from those of the previous evaluation."""
    still_dirty: tuple[int, ...]
    """Ids of the topics that stay due, because another process was working on them or because the pass has paused
    them.
    """

    @property
    def operation_ids(self) -> tuple[int, ...]:
        """Ids of the intended operations, in the order of the topics."""
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
    demand_right_to_act: Callable[[Connection], None] | None = None,
    batch_topics: int = BATCH_TOPICS,
    dry_run: bool = False,
) -> PassResult:
    """Evaluate up to `limit` topics that are due for at least one of `lanes`, in batches of up to `batch_topics`, each
    in a transaction of its own. Write the intents of the decisions, requests for approval, and the decision log. Return
    the results. After each commit, the actions are logged. At the end, decisions and refusals are counted as metrics.

    `shards` and `topic_ids` restrict the topics; None: all. `decided_by` names this process or run: it is stored with
    the decisions, and as the actor of their operations. `demand_right_to_act` is called first in each transaction, and
    raises an error if this process must not act.

    Paused topics, and topics whose evaluation row another transaction has locked, are skipped. A topic that cannot be
    read, evaluated or acted on is logged and paused for `PAUSE_SECONDS`. A topic whose data plane is not in `planes` is
    paused for `ELSEWHERE_SECONDS`; at the end, one line for each such data plane is logged. Topics that the pass pauses
    stay due.

    A dry run (`dry_run`) writes nothing, and its outcomes have no ids. With `topic_ids`, a dry run evaluates these
    topics even if they are paused, not due or outside `shards`; without `topic_ids`, it evaluates the topics that are
    due.

    Raises the errors of `demand_right_to_act`, and those of `Store.transaction`, such as StoreUnavailable, or LostRace
    after a deadlock. Batches that were committed before the error stay committed, but their decisions are not counted
    as metrics, and their topics of other data planes are not logged.
    """
    evaluated, outcomes, still_dirty, handled_ids = 0, list[TopicOutcome](), list[int](), list[int]()
    elsewhere = dict[int, str]()
    batch_size = batch_topics
    while len(handled_ids) < limit:
        batch_limit = min(batch_size, limit - len(handled_ids))
        with store.transaction() as tx:
            if demand_right_to_act is not None:
                demand_right_to_act(tx)
            if dry_run and topic_ids is not None:
                unhandled = [p for p in evaluations.read(tx, topic_ids) if p.topic_id not in handled_ids]
                pending = unhandled[:batch_limit]
            else:
                pending = evaluations.lock_due(
                    tx,
                    lanes=lanes,
                    limit=batch_limit,
                    shards=shards,
                    topic_ids=topic_ids,
                    skip=handled_ids if dry_run else still_dirty,
                )
            batch = Batch(tx, planes, frozenset(lanes), decided_by, pending)
            batch.evaluate(batch.topics)
            if not dry_run:
                batch.act()
        if not dry_run:
            batch.log_outcomes()
        postponed = batch.with_treatment(Treatment.POSTPONED)
        handled_ids += batch.topics.keys() - set(postponed)
        still_dirty += batch.with_treatment(Treatment.IN_USE, Treatment.ELSEWHERE, Treatment.PAUSED)
        elsewhere |= batch.elsewhere
        # If many topics act, each full batch would be evaluated for the few topics on which it may act.
        batch_size = min(batch_topics, 2 * ACTING_TOPICS) if postponed else batch_topics
        evaluated += sum(topic.evaluation is not None for topic in batch.topics.values())
        outcomes += [topic.outcome() for topic in batch.new_topics()]
        if len(pending) < batch_limit and not postponed:
            break  # No further topics are pending.
    _log_elsewhere(elsewhere)
    _count(outcomes)
    return PassResult(evaluated, tuple(outcomes), tuple(still_dirty))


def _log_elsewhere(elsewhere: Mapping[int, str]) -> None:
    """Log the number of these topics, given with the names of their data planes, and one topic as an example, in one
    line for each data plane.
    """
    examples = {plane: topic_id for topic_id, plane in elsewhere.items()}
    topics = Counter(elsewhere.values())
    for plane, topic_id in sorted(examples.items()):
        log.warning(
            "data plane not configured here: its topics are not evaluated",
            data_plane=plane,
            topics=topics[plane],
            topic_id=topic_id,
        )


def _count(outcomes: Sequence[TopicOutcome]) -> None:
    """Count the decisions and refusals of the outcomes as metrics. Outcomes without a decision id, such as those of a
    dry run, are not counted.
    """
    for outcome in outcomes:
        if outcome.decision_id is None:
            continue
        for decision in outcome.evaluation.decisions:
            metrics.DECISIONS.labels(lane_of(decision).value, type(decision).__name__.lower()).inc()
        for refusal in outcome.evaluation.refusals:
            metrics.REFUSALS.labels(refusal.lane.value if refusal.lane else "all", refusal.reason.value).inc()
