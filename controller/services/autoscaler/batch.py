"""One batch of a pass: some drained topics, evaluated and acted on within one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from controller import metrics, telemetry
from controller.dataplane.base import DataPlane
from controller.dataplane.layout_keeper import naming
from controller.domain.approvals import kind_of
from controller.domain.decision import Decision, Evaluation, Lane, lane_of, sealed_by
from controller.domain.errors import CleaveError, LostRace, SegmentBusy, TopicNotFound
from controller.domain.evaluator import code_version, decide
from controller.domain.operation import Operation, Origin
from controller.domain.planning import plan
from controller.domain.situation import Capabilities, Situation
from controller.services.autoscaler import shadows as shadow
from controller.services.autoscaler.shadows import Shadow
from controller.services.autoscaler.verdicts import digest
from controller.store import set_aside
from controller.store.decisions import approvals, evaluations, ledger, reconnections, situations
from controller.store.decisions.approvals import DoneAct, ProposedAct
from controller.store.decisions.evaluations import FinishedEvaluation, PendingEvaluation
from controller.store.decisions.ledger import LedgerRow
from controller.store.decisions.reconnections import Spending
from controller.store.decisions.situations import LockedTopic
from controller.store.journal import reshape_intents
from controller.store.journal.operations import Request
from controller.store.journal.reshape_intents import ReshapeDraft, TopicView
from controller.store.set_aside import SetAside

log = telemetry.get_logger(__name__)

PAUSE_SECONDS = 60.0
"""How long a topic that cannot be decided or acted on here is left alone."""

ACTING_TOPICS = 100
"""Topics acted on in one transaction: their intents take tens of milliseconds, and the batch's rows are
held meanwhile.
"""


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """A topic that decided, or refused something it had not refused before; no ids when nothing was written. `topic`: its name where
    it was to act.
    """

    topic_id: int
    evaluation: Evaluation
    decision_id: int | None = None
    operation_ids: tuple[int, ...] = ()
    topic: str = ""


class Batch:
    """Some drained topics within one transaction."""

    def __init__(
        self,
        tx: Connection,
        planes: Mapping[str, DataPlane],
        lanes: frozenset[Lane],
        decided_by: str,
        pending: Sequence[PendingEvaluation],
    ) -> None:
        self._tx = tx
        self._planes = planes
        self._lanes = lanes
        self._decided_by = decided_by
        self.pending = {p.topic_id: p for p in pending}
        self.situations: dict[int, Situation] = {}
        self.verdicts: dict[int, Evaluation] = {}
        self.left: list[int] = []
        self.postponed: list[int] = []
        self._digests: dict[int, str | None] = {}
        self._paused: list[int] = []
        self._unfit: list[SetAside] = []
        self._decision_ids: dict[int, int] = {}
        self._operation_ids: dict[int, tuple[int, ...]] = {}
        self._names: dict[int, str] = {}

    def evaluate(self, topic_ids: Collection[int]) -> None:
        """Decide about these topics, for the first time or again."""
        if not topic_ids:
            return
        found, unreadable = situations.load_readable(self._tx, topic_ids, self._capabilities)
        for topic_id, error in unreadable.items():
            self._set_aside(topic_id, "its rows cannot be read", error)
        for topic_id, situation in found.items():
            try:
                self.verdicts[topic_id] = decide(situation, self._lanes)
            except Exception as error:  # one topic's trouble must not stop the fleet
                log.exception("a topic could not be decided", topic_id=topic_id)
                self._set_aside(topic_id, "it cannot be decided on", error)
            else:
                self.situations[topic_id] = situation
                refusals = self.verdicts[topic_id].refusals
                self._digests[topic_id] = digest(refusals, self._lanes, self.pending[topic_id].outcome_digest)
        missing = set(topic_ids) - found.keys() - unreadable.keys()
        for topic_id, plane in (
            situations.live_elsewhere(self._tx, missing, self._planes).items() if missing else ()
        ):
            log.warning(
                "a topic is on a data plane that is not configured here", topic_id=topic_id, plane=plane
            )
            self._pause(topic_id)

    def act(self) -> None:
        """Intents for what was decided, ledger rows for what is new, and the evaluations marked as made."""
        self._postpone(sorted(self._moving())[ACTING_TOPICS:])
        moving = self._moving()
        locked = situations.lock_free_topics(self._tx, moving) if moving else {}
        self._names = {t: topic.topic for t, topic in locked.items()}
        for topic_id in moving - locked.keys():
            self._leave(topic_id)
        self.evaluate([t for t, topic in locked.items() if not topic.is_unmoved(self.situations[t].layout)])
        shadows = self._shadows()
        new = self._new_topics()
        self._decision_ids = dict(zip(new, ledger.reserve_ids(self._tx, len(new)), strict=True))
        rows = self._ledger_rows(new)
        self._intend([locked[topic_id] for topic_id in sorted(self._acting())])
        ledger.record(self._tx, [row for t, row in rows.items() if t in self.verdicts])
        approvals.propose(self._tx, [one for t in locked for one in self._proposals(t)])
        approvals.done(self._tx, [one for t in self._operation_ids for one in self._done(t)])
        written = {t: self._decision_ids[t] for t in new if t in self.verdicts}
        shadow.record(
            self._tx, shadows, self.verdicts, written, lanes=self._lanes, decided_by=self._decided_by
        )
        reconnections.spend(
            self._tx, [s for t in self._operation_ids if (s := self._spending(t)).reconnections]
        )
        kept = {*self.left, *self.postponed}
        finished = [self._finished(p) for p in self.pending.values() if p.topic_id not in kept]
        evaluations.finish(self._tx, self._lanes, finished)
        evaluations.defer(self._tx, self._paused, PAUSE_SECONDS)
        set_aside.note(self._tx, set_aside.Batch.EVALUATION, self._unfit)

    def outcomes(self) -> list[TopicOutcome]:
        """The topics that acted, or refused something new."""
        return [
            TopicOutcome(
                t,
                self.verdicts[t],
                self._decision_ids.get(t),
                self._operation_ids.get(t, ()),
                self._names.get(t, ""),
            )
            for t in self._new_topics()
        ]

    def say(self) -> None:
        """A line for each act that was decided and each that a person is asked about. Call it once all of it is committed."""
        for one in self.outcomes():
            if one.decision_id is None:
                continue
            ids = {
                "topic": one.topic,
                "topic_id": one.topic_id,
                "decision_id": one.decision_id,
                "decided_by": self._decided_by,
            }
            for act, operation_id in zip(one.evaluation.decisions, one.operation_ids, strict=True):
                log.info("decided", **ids, operation_id=operation_id, **_told(act))
            for act in one.evaluation.proposals:
                log.info("approval proposed", **ids, **_told(act))

    def _shadows(self) -> list[Shadow]:
        """What candidates say, asked before an intent is written: on the inputs that the live policy was asked on."""
        live = {topic_id: self.situations[topic_id] for topic_id in self.verdicts}
        return shadow.ask(self._tx, live, self._capabilities, self._lanes) if live else []

    @property
    def _capabilities(self) -> dict[str, Capabilities]:
        return {name: plane.capabilities for name, plane in self._planes.items()}

    def _spending(self, topic_id: int) -> Spending:
        """Each client of a sealed segment reconnects to what follows it."""
        situation = self.situations[topic_id]
        sealed = sum(len(sealed_by(act)) for act in self.verdicts[topic_id].decisions)
        policy = situation.policy
        return Spending(
            topic_id,
            float(situation.reconnections * sealed),
            policy.reconnections_per_minute,
            policy.cluster_reconnections_per_minute,
        )

    def _intend(self, acting: Sequence[LockedTopic]) -> None:
        """Where one act was decided, all at once; several of one topic stand or fall together."""
        by_topic = {topic.topic_id: topic for topic in acting}
        alone = [t for t in by_topic if len(self.verdicts[t].decisions) == 1]
        self._intend_one_each([by_topic[t] for t in alone])
        for topic_id in by_topic.keys() - {*alone}:
            try:
                with self._tx.begin_nested():
                    written = [
                        self._written(by_topic[topic_id], ordinal)
                        for ordinal in range(len(self.verdicts[topic_id].decisions))
                    ]
            except (CleaveError, IntegrityError) as error:
                self._refused(topic_id, error)
            else:
                self._operation_ids[topic_id] = tuple(one.operation_id for one in written)

    def _intend_one_each(self, acting: Sequence[LockedTopic]) -> None:
        """Two statements for all of them; where the second fails as a whole, each by itself."""
        requests = {t.topic_id: self._request(t.topic_id, 0) for t in acting}
        views = reshape_intents.look_at_many(
            self._tx, list(requests), [one.request_key for one in requests.values()]
        )
        drafts: list[ReshapeDraft] = []
        for topic, view in zip(acting, views, strict=True):
            try:
                drafts.append(self._draft(topic, view, requests[topic.topic_id], 0))
            except CleaveError as error:
                self._refused(topic.topic_id, error)
        written: dict[int, Operation] = {}
        try:
            with self._tx.begin_nested():
                written = reshape_intents.write(self._tx, drafts)
        except IntegrityError:
            log.warning("intents of a batch are written one by one", topics=len(drafts))
        for draft in drafts:
            topic_id = draft.view.topic_id
            try:
                operation = written.get(topic_id) or reshape_intents.intend(self._tx, draft).operation
            except (CleaveError, IntegrityError) as error:
                self._refused(topic_id, error)
            else:
                self._operation_ids[topic_id] = (operation.operation_id,)

    def _written(self, topic: LockedTopic, ordinal: int) -> Operation:
        """One act of several: each is planned on what the one before has left."""
        request = self._request(topic.topic_id, ordinal)
        view = reshape_intents.look(self._tx, topic.topic_id, request.request_key)
        return reshape_intents.intend(self._tx, self._draft(topic, view, request, ordinal)).operation

    def _draft(
        self, topic: LockedTopic, view: TopicView | None, request: Request, ordinal: int
    ) -> ReshapeDraft:
        """The act as a plan on the layout of the moment. Raises LostRace when that is not what was decided on."""
        situation = self.situations[topic.topic_id]
        if view is None:
            raise TopicNotFound(f"topic {topic.topic} is gone; nothing is left to do")
        input_version = self.pending[topic.topic_id].input_version  # asked here and compared again by `write`
        view.demand_current(epoch=situation.layout.epoch, input_version=input_version)
        act = self.verdicts[topic.topic_id].decisions[ordinal]
        planned = plan(act, view.layout, max_buckets=situation.policy.entry_bucket_max_per_segment)
        naming_of = naming(self._planes[topic.data_plane])
        draft = ReshapeDraft(view, planned, request, naming_of, input_version)
        draft.demand_possible()
        return draft

    def _refused(self, topic_id: int, error: CleaveError | IntegrityError) -> None:
        """The intent was refused. The topic is decided again soon where another process was faster, else later."""
        if isinstance(error, LostRace | SegmentBusy):
            metrics.LOST_RACES.labels("intent").inc()
            log.info(
                "a topic moved while it was decided; left for the next pass",
                topic_id=topic_id,
                error=str(error),
            )
            self._leave(topic_id)
        else:
            log.error("a decision could not be written as an intent", topic_id=topic_id, error=str(error))
            self._pause(topic_id)

    def _request(self, topic_id: int, ordinal: int) -> Request:
        decision_id = self._decision_ids[topic_id]
        act = self.verdicts[topic_id].decisions[ordinal]
        return Request(
            request_key=f"decision-{decision_id}-{ordinal}",
            origin=Origin.AUTO,
            actor=self._decided_by,
            reason=act.reason,
            decision_id=decision_id,
        )

    def _ledger_rows(self, topic_ids: Collection[int]) -> dict[int, LedgerRow]:
        """The rows of these topics, before any intent: a decision whose inputs cannot be kept is not carried out."""
        rows: dict[int, LedgerRow] = {}
        for topic_id in topic_ids:
            try:
                rows[topic_id] = self._ledger_row(topic_id)
            except Exception as error:
                log.exception("the inputs of a decision cannot be kept", topic_id=topic_id)
                self._set_aside(topic_id, "its inputs cannot be kept", error)
        return rows

    def _ledger_row(self, topic_id: int) -> LedgerRow:
        situation = self.situations[topic_id]
        return LedgerRow(
            decision_id=self._decision_ids[topic_id],
            topic_id=topic_id,
            decided_at=situation.now,
            epoch=situation.layout.epoch,
            input_version=self.pending[topic_id].input_version,
            lanes=self._lanes,
            decided_by=self._decided_by,
            code_version=code_version(situation.policy),
            evaluation=self.verdicts[topic_id],
            situation=situation.to_json(),
        )

    def _finished(self, pending: PendingEvaluation) -> FinishedEvaluation:
        """A topic without a verdict is not live. There is nothing to do until its creation commits, and that makes it
        dirty again.
        """
        verdict = self.verdicts.get(pending.topic_id, Evaluation())
        refused = self._digests.get(pending.topic_id)
        return FinishedEvaluation(pending.topic_id, pending.input_version, verdict.valid_until, refused)

    def _proposals(self, topic_id: int) -> list[ProposedAct]:
        """What a person is asked now."""
        situation, verdict = self.situations[topic_id], self.verdicts.get(topic_id, Evaluation())
        policy = situation.policy
        return [
            ProposedAct(
                topic_id=topic_id,
                act=act,
                epoch=situation.layout.epoch,
                decision_id=self._decision_ids[topic_id],
                proposed_by=self._decided_by,
                wait_seconds=policy.approval_wait_seconds,
                default_answer=policy.approval_default,
            )
            for act in verdict.proposals
        ]

    def _done(self, topic_id: int) -> list[DoneAct]:
        """What was approved, and is carried out now; of a topic that waits for nobody nothing."""
        if not self.situations[topic_id].approvals:
            return []
        acts = zip(self.verdicts[topic_id].decisions, self._operation_ids[topic_id], strict=True)
        return [DoneAct(topic_id, act, operation_id) for act, operation_id in acts]

    def _moving(self) -> set[int]:
        """Topics on which something is done or proposed; both are about a layout, which must stay as it was seen."""
        return {t for t, verdict in self.verdicts.items() if verdict.decisions or verdict.proposals}

    def _acting(self) -> set[int]:
        return {topic_id for topic_id, verdict in self.verdicts.items() if verdict.decisions}

    def _new_topics(self) -> list[int]:
        return [
            topic_id
            for topic_id, verdict in sorted(self.verdicts.items())
            if verdict.decisions
            or verdict.proposals
            or self._digests[topic_id] != self.pending[topic_id].outcome_digest
        ]

    def _postpone(self, topic_ids: Collection[int]) -> None:
        """Leave them for the next batch of this pass. They stay dirty."""
        self.postponed += topic_ids
        for topic_id in topic_ids:
            del self.verdicts[topic_id]

    def _pause(self, topic_id: int) -> None:
        self._paused.append(topic_id)
        self._leave(topic_id)

    def _set_aside(self, topic_id: int, what: str, error: Exception) -> None:
        """Leave a topic alone for a while, and say why where people look."""
        self._unfit.append(
            SetAside(f"topic {topic_id}", f"{what}: {type(error).__name__}: {error}", topic_id)
        )
        self._pause(topic_id)

    def _leave(self, topic_id: int) -> None:
        self.left.append(topic_id)
        self.verdicts.pop(topic_id, None)


def _told(act: Decision) -> dict[str, object]:
    """An act for a line of the log."""
    return {
        "lane": lane_of(act).value,
        "kind": kind_of(act),
        "segment_ids": list(sealed_by(act)),
        "reason": act.reason,
    }
