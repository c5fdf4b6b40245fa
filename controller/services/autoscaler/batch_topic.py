"""One topic of a batch: its inputs, evaluation and results."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from controller import telemetry
from controller.domain.approval_states import Subject
from controller.domain.decision import Decision, Evaluation, Lane, action_text, kind_of, lane_of, sealed_by
from controller.domain.errors import InvariantViolated
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import code_version
from controller.domain.operation import Origin
from controller.services.autoscaler.outcome_digest import digest
from controller.store.approvals import NewApproval, StartedAction
from controller.store.decisions.decision_log import EvaluationRecord
from controller.store.decisions.evaluation_inputs import LockedTopic
from controller.store.decisions.evaluations import FinishedEvaluation, PendingEvaluation
from controller.store.decisions.reconnections import Spending
from controller.store.journal.operations import Request
from controller.store.set_aside import SetAside

log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """A topic that acts, proposes, or whose refusals differ from those of its previous evaluation. Has no ids
    if nothing was written. `topic` is the topic's name if the topic's row was locked, else empty.
    """

    topic_id: int
    evaluation: Evaluation
    decision_id: int | None = None
    operation_ids: tuple[int, ...] = ()
    topic: str = ""


class Treatment(Enum):
    """Treatment of a topic by the batch."""

    FINISHED = auto()
    """The evaluation of the topic is recorded as made."""
    POSTPONED = auto()
    """The next batch of the pass takes the topic, which stays due."""
    IN_USE = auto()
    """Another process is working on the topic, which stays due."""
    ELSEWHERE = auto()
    """The topic's data plane is not configured here. The topic stays due, and is not evaluated for `ELSEWHERE_SECONDS`."""
    PAUSED = auto()
    """The topic cannot be decided or acted on here. The topic stays due, and is not evaluated for `PAUSE_SECONDS`."""


@dataclass(slots=True)
class BatchTopic:
    """A topic of a batch. `evaluation` is None until the topic is evaluated, and again once the topic will
    not be finished. `digest` is the digest of its refusals; `locked` the locked row of a topic with actions;
    `decision_id` the id that is reserved in the decision log; `set_aside` the reason of a pause, for the view
    `inspect.set_aside`. Each is None until it is known.
    """

    pending: PendingEvaluation
    lanes: frozenset[Lane]
    decided_by: str
    treatment: Treatment = Treatment.FINISHED
    evaluation: Evaluation | None = None
    digest: str | None = None
    locked: LockedTopic | None = None
    decision_id: int | None = None
    operation_ids: tuple[int, ...] = ()
    set_aside: SetAside | None = None
    _situation: EvaluationInput | None = field(default=None, init=False)

    @property
    def topic_id(self) -> int:
        return self.pending.topic_id

    @property
    def situation(self) -> EvaluationInput:
        """The inputs of the latest evaluation. Raises InvariantViolated before the first evaluation."""
        if self._situation is None:
            raise InvariantViolated(f"topic {self.topic_id} has no situation yet; evaluate it first")
        return self._situation

    @property
    def actions(self) -> tuple[Decision, ...]:
        """The actions to carry out; empty unless the topic will be finished."""
        return self.evaluation.decisions if self.evaluation else ()

    @property
    def proposals(self) -> tuple[Decision, ...]:
        """The actions that await approval; empty unless the topic will be finished."""
        return self.evaluation.proposals if self.evaluation else ()

    @property
    def has_actions(self) -> bool:
        """True if an action is decided or proposed. Both depend on the layout, which must stay as it was
        read.
        """
        return bool(self.actions or self.proposals)

    @property
    def is_new(self) -> bool:
        """True if the evaluation acts or proposes, or if its refusals differ (`digest`) from those of the
        previous evaluation.
        """
        return self.has_actions or (
            self.evaluation is not None and self.digest != self.pending.outcome_digest
        )

    def decided(self, situation: EvaluationInput, evaluation: Evaluation) -> None:
        """Store an evaluation of the topic, the inputs `situation` on which it was made, and the digest of its
        refusals. They replace those of an earlier evaluation. The treatment of the topic does not change.
        """
        self._situation, self.evaluation = situation, evaluation
        self.digest = digest(evaluation.refusals, self.lanes, self.pending.outcome_digest)

    def drop(self, treatment: Treatment) -> None:
        """Discard the evaluation and set the treatment, so that the batch does nothing more with the topic. The topic
        stays due.
        """
        self.treatment, self.evaluation = treatment, None

    def pause(self, reason: str, error: Exception) -> None:
        """Discard the evaluation, pause the topic, and keep the reason for the view `inspect.set_aside`."""
        self.set_aside = SetAside(
            f"topic {self.topic_id}", f"{reason}: {type(error).__name__}: {error}", self.topic_id
        )
        self.drop(Treatment.PAUSED)

    def request(self, ordinal: int) -> Request:
        """Return the request of the operation that carries out the action number `ordinal` (from 0) of `actions`. The
        caller must have reserved the decision id first. The request key is `decision-<id>-<ordinal>`, so a repeated
        request returns the same operation. Raises IndexError if there is no such action.
        """
        return Request(
            request_key=f"decision-{self.decision_id}-{ordinal}",
            origin=Origin.AUTO,
            actor=self.decided_by,
            reason=self.actions[ordinal].reason,
            decision_id=self.decision_id,
        )

    def ledger_row(self) -> EvaluationRecord:
        """Return the topic's row of the decision log, with the inputs of the latest evaluation as JSON. If the
        evaluation was discarded, the row has an empty evaluation. Raises ValueError if JSON cannot represent the
        inputs, and InvariantViolated before the topic is evaluated or before a decision id is reserved.
        """
        situation = self.situation
        return EvaluationRecord(
            decision_id=self._reserved_id(),
            topic_id=self.topic_id,
            decided_at=situation.now,
            epoch=situation.layout.epoch,
            input_version=self.pending.input_version,
            lanes=self.lanes,
            decided_by=self.decided_by,
            code_version=code_version(situation.policy),
            evaluation=self.evaluation or Evaluation(),
            situation=situation.to_json(),
        )

    def new_approvals(self) -> list[NewApproval]:
        """Return a request for approval for each of `proposals`, with the waiting time and the default answer of the
        topic's policy. The list is empty without proposals. Raises InvariantViolated before the topic is evaluated;
        with proposals, also before a decision id is reserved.
        """
        policy = self.situation.policy
        return [
            NewApproval(
                Subject.OPERATION,
                self._reserved_id(),
                self.topic_id,
                action_text(action),
                action.reason,
                self.decided_by,
                act=action,
                epoch=self.situation.layout.epoch,
                wait_seconds=policy.approval_wait_seconds,
                default_answer=policy.approval_default,
            )
            for action in self.proposals
        ]

    def started_actions(self) -> list[StartedAction]:
        """Return each action of the topic with its operation, including actions that needed no approval. The list is
        empty if the topic has no operations, or if its inputs contain no approvals, so that there is none to mark as
        done.
        """
        if not self.operation_ids or not self.situation.approvals:
            return []
        operations = zip(self.actions, self.operation_ids, strict=True)
        return [StartedAction(self.topic_id, action, operation_id) for action, operation_id in operations]

    def spending(self) -> Spending:
        """Return the number of reconnections that the actions cause, and the limits per minute of the topic's policy,
        for the topic and for the cluster. The number is 0 without actions. Every client of the topic counts once for
        each segment that an action seals. Raises InvariantViolated before the topic is evaluated.
        """
        sealed = sum(len(sealed_by(action)) for action in self.actions)
        policy = self.situation.policy
        return Spending(
            self.topic_id,
            float(self.situation.reconnections * sealed),
            policy.reconnections_per_minute,
            policy.cluster_reconnections_per_minute,
        )

    def finished(self) -> FinishedEvaluation:
        """Return the record that the topic's inputs were evaluated, with the instant until which the evaluation is
        valid and the digest of its refusals. The record of a topic that is not live has neither, because the topic
        has no evaluation. Such a topic becomes due when its creation is committed.
        """
        evaluation = self.evaluation or Evaluation()
        return FinishedEvaluation(
            self.topic_id, self.pending.input_version, evaluation.valid_until, self.digest
        )

    def outcome(self) -> TopicOutcome:
        """Return the result for the caller of the pass."""
        return TopicOutcome(
            self.topic_id,
            self.evaluation or Evaluation(),
            self.decision_id,
            self.operation_ids,
            self.locked.topic if self.locked else "",
        )

    def log_outcome(self) -> None:
        """Log each action that has an operation, and each action for which an approval was requested. Does nothing if
        no decision id was reserved, as in a dry run. Call it after the commit.
        """
        if self.decision_id is None:
            return
        ids = {
            "topic": self.locked.topic if self.locked else "",
            "topic_id": self.topic_id,
            "decision_id": self.decision_id,
            "decided_by": self.decided_by,
        }
        for action, operation_id in zip(self.actions, self.operation_ids, strict=True):
            log.info("decided", **ids, operation_id=operation_id, **_fields(action))
        for action in self.proposals:
            log.info("approval proposed", **ids, **_fields(action))

    def _reserved_id(self) -> int:
        """Return the decision id. Raises InvariantViolated before a decision id is reserved."""
        if self.decision_id is None:
            raise InvariantViolated(f"topic {self.topic_id} has no decision id yet; reserve one first")
        return self.decision_id


def _fields(action: Decision) -> dict[str, object]:
    """Return an action as fields of a log line."""
    return {
        "lane": lane_of(action).value,
        "kind": kind_of(action),
        "segment_ids": list(sealed_by(action)),
        "reason": action.reason,
    }
