"""One batch of a pass: topics whose evaluation rows are locked, and which are evaluated and acted on within
one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from controller import metrics, telemetry
from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import naming
from controller.domain.decision import Lane
from controller.domain.errors import CleaveError, LostRace, SegmentBusy, TopicNotFound
from controller.domain.evaluation_input import Capabilities
from controller.domain.evaluator import decide
from controller.domain.operation import Operation
from controller.domain.reshape import plan_action
from controller.services.autoscaler import shadows as shadow
from controller.services.autoscaler.batch_topic import BatchTopic, Treatment
from controller.services.autoscaler.shadows import Shadow
from controller.store import approvals, set_aside
from controller.store.decisions import decision_log, evaluation_inputs, evaluations, reconnections
from controller.store.decisions.decision_log import EvaluationRecord
from controller.store.decisions.evaluations import PendingEvaluation
from controller.store.journal import reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft, TopicView

log = telemetry.get_logger(__name__)

PAUSE_SECONDS = 60.0
"""Seconds for which a topic that cannot be decided or acted on is not evaluated."""

ELSEWHERE_SECONDS = 5.0
"""Seconds for which a topic is not evaluated whose data plane is not configured here. The pause also holds for processes
that have the data plane, so it is short; without a pause, this process would evaluate the topic without end.
"""

ACTING_TOPICS = 100
"""Maximum number of topics acted on in one transaction. Their intents take tens of milliseconds, during which
the rows of the batch are locked.
"""


class Batch:
    """The topics of one transaction of a pass: evaluates them, and writes everything that follows. Their
    evaluation rows are locked, except in a dry run of named topics. Not thread-safe.
    """

    def __init__(
        self,
        tx: Connection,
        planes: Mapping[str, DataPlane],
        lanes: frozenset[Lane],
        decided_by: str,
        pending: Sequence[PendingEvaluation],
    ) -> None:
        """`pending` are the evaluation rows of the batch's topics. `decided_by` is stored with the decisions,
        and as the actor of their operations.
        """
        self._tx = tx
        self._planes = planes
        self._lanes = lanes
        self._decided_by = decided_by
        self.topics = {
            evaluation_row.topic_id: BatchTopic(evaluation_row, lanes, decided_by)
            for evaluation_row in pending
        }
        self.elsewhere: dict[int, str] = {}
        """Data planes, by topic, of the topics whose data plane is not configured here."""

    def with_treatment(self, *treatments: Treatment) -> list[int]:
        """Return the ids of the batch's topics that have one of these treatments, in the order of the batch."""
        return [topic.topic_id for topic in self.topics.values() if topic.treatment in treatments]

    def new_topics(self) -> list[BatchTopic]:
        """Return the topics that act, propose, or whose refusals differ from those of the previous
        evaluation, ordered by id.
        """
        return [topic for _, topic in sorted(self.topics.items()) if topic.is_new]

    def evaluate(self, topic_ids: Collection[int]) -> None:
        """Evaluate these topics, which must belong to the batch, for the first time or again, and store the inputs
        and results in `topics`. Does nothing without ids.

        A topic whose rows cannot be read, or whose evaluation raises an error, is paused, and the reason is kept for
        the view `inspect.set_aside`. A live topic whose data plane is not in `planes` is left to other processes
        (`ELSEWHERE_SECONDS`), and added to `elsewhere`. A topic that is not live is left without an evaluation.
        Raises DBAPIError for a failed statement, and Retryable errors; the transaction must then be rolled back.
        """
        if not topic_ids:
            return
        readable, unreadable = evaluation_inputs.load_readable(self._tx, topic_ids, self._capabilities)
        for topic_id, error in unreadable.items():
            self.topics[topic_id].pause("its rows cannot be read", error)
        for topic_id, situation in readable.items():
            topic = self.topics[topic_id]
            try:
                evaluation = decide(situation, self._lanes)
            except Exception as error:  # An error of one topic must not stop the others.
                log.exception("topic not evaluated", topic_id=topic_id)
                topic.pause("it cannot be evaluated", error)
            else:
                topic.decided(situation, evaluation)
        missing = set(topic_ids) - readable.keys() - unreadable.keys()
        elsewhere = evaluation_inputs.live_elsewhere(self._tx, missing, self._planes) if missing else {}
        self.elsewhere |= elsewhere
        for topic_id in elsewhere:
            self.topics[topic_id].drop(Treatment.ELSEWHERE)

    def act(self) -> None:
        """Write everything that follows from the evaluations: intents, the decision log, requests for approval,
        approvals that are used up, shadow evaluations, the reconnections that the actions cause, the results of
        finished evaluations, the pauses, and the topics that were set aside.

        First lock the topics that act or propose, and evaluate again those that have changed. Topics beyond
        `ACTING_TOPICS` are postponed. An error of one topic pauses or drops this topic only: nothing is written about
        its decision, and the topic stays due. Raises DBAPIError for a failed statement; the transaction must then be
        rolled back.
        """
        self._lock_acting()
        shadows = self._shadows()
        self._record_decisions()
        topics = list(self.topics.values())
        approvals.propose(
            self._tx, [action for topic in topics if topic.proposals for action in topic.new_approvals()]
        )
        approvals.mark_done(self._tx, [action for topic in topics for action in topic.started_actions()])
        self._record_shadows(shadows)
        spendings = [topic.spending() for topic in topics if topic.operation_ids]
        reconnections.spend(self._tx, [spending for spending in spendings if spending.reconnections])
        finished = [topic.finished() for topic in topics if topic.treatment is Treatment.FINISHED]
        evaluations.finish(self._tx, self._lanes, finished)
        evaluations.defer(self._tx, self.with_treatment(Treatment.PAUSED), PAUSE_SECONDS)
        evaluations.defer(self._tx, self.with_treatment(Treatment.ELSEWHERE), ELSEWHERE_SECONDS)
        set_aside_topics = [topic.set_aside for topic in topics if topic.set_aside]
        set_aside.note(self._tx, set_aside.Batch.EVALUATION, set_aside_topics)

    def log_outcomes(self) -> None:
        """Log each action that was decided or proposed. Call it after the commit."""
        for topic in self.new_topics():
            topic.log_outcome()

    @property
    def _capabilities(self) -> dict[str, Capabilities]:
        return {name: plane.capabilities for name, plane in self._planes.items()}

    def _lock_acting(self) -> None:
        """Lock the rows of the first `ACTING_TOPICS` topics, by id, that act or propose; further such topics are
        postponed. A topic whose row another transaction has locked, or that is no longer live, is dropped as in use,
        so that it stays due. Evaluate a locked topic again if its layout has changed since its evaluation, or if an
        intent has reserved segment ids.
        """
        acting = [topic for _, topic in sorted(self.topics.items()) if topic.has_actions]
        for topic in acting[ACTING_TOPICS:]:
            topic.drop(Treatment.POSTPONED)
        del acting[ACTING_TOPICS:]
        locked = evaluation_inputs.lock_free_topics(self._tx, [t.topic_id for t in acting]) if acting else {}
        changed = []
        for topic in acting:
            topic.locked = locked.get(topic.topic_id)
            if topic.locked is None:
                topic.drop(Treatment.IN_USE)
            elif not topic.locked.is_unmoved(topic.situation.layout):
                changed.append(topic.topic_id)
        self.evaluate(changed)

    def _shadows(self) -> list[Shadow]:
        """Return the shadow evaluations of the topics that have an evaluation and a candidate. A shadow evaluation
        that equals the candidate's previous evaluation is left out. Call this before any intent is written, because
        an intent would change the inputs. Errors of candidates are logged, not raised; only the loss of the
        connection is raised.
        """
        live_inputs = {
            topic_id: topic.situation
            for topic_id, topic in self.topics.items()
            if topic.evaluation is not None
        }
        return (
            shadow.evaluate_candidates(self._tx, live_inputs, self._capabilities, self._lanes)
            if live_inputs
            else []
        )

    def _record_shadows(self, shadows: Collection[Shadow]) -> None:
        """Store these shadow evaluations, each with the live evaluation of its topic and the id of the live
        evaluation in the decision log, if it has one. The shadow evaluation of a topic whose evaluation was discarded
        is not stored. Errors are logged, not raised; only the loss of the connection is raised.
        """
        live_evaluations = {
            topic_id: topic.evaluation
            for topic_id, topic in self.topics.items()
            if topic.evaluation is not None
        }
        decision_ids = {topic.topic_id: topic.decision_id for topic in self.new_topics() if topic.decision_id}
        shadow.record(
            self._tx, shadows, live_evaluations, decision_ids, lanes=self._lanes, decided_by=self._decided_by
        )

    def _record_decisions(self) -> None:
        """Reserve a decision id for each of the new topics (`new_topics`), build their rows of the decision log,
        write the intents of their actions, and then write the rows. A topic whose inputs cannot be stored is paused;
        its intents are not written. A topic whose intents were refused is dropped (`_refused`). Neither has a row in
        the decision log, although its id stays reserved.
        """
        new_topics = self.new_topics()
        for topic, decision_id in zip(
            new_topics, decision_log.reserve_ids(self._tx, len(new_topics)), strict=True
        ):
            topic.decision_id = decision_id
        rows = self._decision_log_rows(new_topics)
        self._intend([topic for topic in new_topics if topic.actions])
        decision_log.record(self._tx, [row for topic, row in rows if topic.evaluation is not None])

    def _decision_log_rows(self, topics: Collection[BatchTopic]) -> list[tuple[BatchTopic, EvaluationRecord]]:
        """Return these topics with their rows of the decision log, built before any intent. A topic whose inputs
        cannot be stored is left out, logged and paused, so its decision is not carried out.
        """
        rows = []
        for topic in topics:
            try:
                rows.append((topic, topic.ledger_row()))
            except Exception as error:
                log.exception("inputs of a decision not stored", topic_id=topic.topic_id)
                topic.pause("its inputs cannot be stored", error)
        return rows

    def _intend(self, acting: Sequence[BatchTopic]) -> None:
        """Write the intents of the topics' actions, and store the operation ids in the topics. All actions of a topic
        succeed or fail together. The intents of topics with a single action are written together; those of any other
        topic are written in a savepoint of their own. A topic with a refused intent is dropped (`_refused`), and none
        of its intents remains.
        """
        self._intend_one_each([topic for topic in acting if len(topic.actions) == 1])
        for topic in acting:
            if len(topic.actions) < 2:
                continue
            try:
                with self._tx.begin_nested():
                    written = [self._written(topic, ordinal) for ordinal in range(len(topic.actions))]
            except (CleaveError, IntegrityError) as error:
                self._refused(topic, error)
            else:
                topic.operation_ids = tuple(operation.operation_id for operation in written)

    def _intend_one_each(self, acting: Sequence[BatchTopic]) -> None:
        """Write the intents of these topics, each with exactly one action, and store the operation ids in the topics.
        A topic whose intent is refused is dropped (`_refused`).

        All intents are written by one statement. If that statement violates a constraint, a warning is logged, and
        each intent is written by itself. An intent that the statement left out, because its topic has changed, is
        also tried by itself, so that the reason of the refusal is known.
        """
        requests = [topic.request(0) for topic in acting]
        views = reshape_intents.look_at_many(
            self._tx, [topic.topic_id for topic in acting], [request.request_key for request in requests]
        )
        drafts: list[tuple[BatchTopic, ReshapeDraft]] = []
        for topic, view, request in zip(acting, views, requests, strict=True):
            try:
                drafts.append((topic, self._draft(topic, view, request, 0)))
            except CleaveError as error:
                self._refused(topic, error)
        written: dict[int, Operation] = {}
        try:
            with self._tx.begin_nested():
                written = reshape_intents.write(self._tx, [draft for _, draft in drafts])
        except IntegrityError:
            log.warning("intents of a batch written one by one", topics=len(drafts))
        for topic, draft in drafts:
            try:
                operation = written.get(topic.topic_id) or reshape_intents.intend(self._tx, draft).operation
            except (CleaveError, IntegrityError) as error:
                self._refused(topic, error)
            else:
                topic.operation_ids = (operation.operation_id,)

    def _written(self, topic: BatchTopic, ordinal: int) -> Operation:
        """Write the intent of the topic's action number `ordinal` (from 0), and return the operation. The topic is
        read again first, so that segment ids which earlier intents have reserved are not reused. If the request key
        was used before, return its first operation.

        Raises TopicNotFound, TopicNotLive, TopicHeld, LostRace, SegmentBusy, SegmentNotFound, InvalidLayoutChange,
        Conflict if the request key was used for another request, and IntegrityError for a violated constraint.
        """
        request = topic.request(ordinal)
        view = reshape_intents.look(self._tx, topic.topic_id, request.request_key)
        return reshape_intents.intend(self._tx, self._draft(topic, view, request, ordinal)).operation

    def _draft(
        self, topic: BatchTopic, view: TopicView | None, request: Request, ordinal: int
    ) -> ReshapeDraft:
        """Return the action number `ordinal` (from 0) as a plan on the present layout, which `view` holds
        (None: the topic is gone). Raises TopicNotFound if the topic is gone, TopicNotLive, TopicHeld,
        LostRace if the epoch or input version differs from that of the evaluation, SegmentBusy if a live
        operation has one of the segments, SegmentNotFound for a segment that is not in the layout, and
        InvalidLayoutChange if the action does not fit the layout otherwise.
        """
        situation = topic.situation
        if view is None or topic.locked is None:
            raise TopicNotFound(
                f"topic {topic.locked.topic if topic.locked else topic.topic_id} is gone; its decision is dropped"
            )
        input_version = topic.pending.input_version  # The version is checked here, and again by `write`.
        view.demand_current(epoch=situation.layout.epoch, input_version=input_version)
        planned = plan_action(
            topic.actions[ordinal], view.layout, max_buckets=situation.policy.entry_bucket_max_per_segment
        )
        naming_of = naming(self._planes[topic.locked.data_plane])
        draft = ReshapeDraft(view, planned, request, naming_of, input_version)
        draft.demand_possible()
        return draft

    def _refused(self, topic: BatchTopic, error: CleaveError | IntegrityError) -> None:
        """Drop and log a topic whose intent was refused with `error`. After LostRace or SegmentBusy, the topic counts
        as in use: it stays due for the next pass, and the race is counted as a metric. After any other error, such as
        a violated constraint, the topic is paused, and the reason is kept for the view `inspect.set_aside`.
        """
        if isinstance(error, LostRace | SegmentBusy):
            metrics.LOST_RACES.labels("intent").inc()
            log.info(
                "topic changed during its evaluation; it is left to the next pass",
                topic_id=topic.topic_id,
                error=str(error),
            )
            topic.drop(Treatment.IN_USE)
        else:
            log.error("intent of a decision not written", topic_id=topic.topic_id, error=str(error))
            topic.pause("its action cannot be performed", error)
