"""One topic of a batch: its inputs, evaluation and results."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from controller import telemetry
from controller.domain.approvals import Subject, action_text, kind_of
from controller.domain.decision import Decision, Evaluation, Lane, lane_of, sealed_by
from controller.domain.errors import InvariantViolated
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import code_version
from controller.domain.operation import Origin
from controller.services.autoscaler.verdicts import digest
from controller.store.approvals import NewApproval, StartedAction
from controller.store.decisions.decision_log import EvaluationRecord
from controller.store.decisions.evaluations import FinishedEvaluation, PendingEvaluation
from controller.store.decisions.reconnections import Spending
from controller.store.decisions.situations import LockedTopic
from controller.store.journal.operations import Request
from controller.store.set_aside import SetAside

log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """A topic that decided or has a new refusal. Has no ids if nothing was written. `topic` is the topic's
    name if the topic was to act, else empty.
    """

    topic_id: int
    evaluation: Evaluation
    decision_id: int | None = None
    operation_ids: tuple[int, ...] = ()
    topic: str = ""


class Course(Enum):
    """Treatment of a drained topic by the batch."""

    FINISHED = auto()
    """The evaluation of the topic is recorded as made."""
    POSTPONED = auto()
    """The next batch of the pass takes the topic, which stays dirty."""
    LEFT = auto()
    """Another process is working on the topic, which stays dirty."""
    PAUSED = auto()
    """The topic cannot be decided or acted on here. It stays dirty, and is not evaluated for a while."""


@dataclass(slots=True)
class BatchTopic:
    """A drained topic. `evaluation` is None until the topic is evaluated, and again once the topic will not
    be finished.
    """

    pending: PendingEvaluation
    lanes: frozenset[Lane]
    decided_by: str
    course: Course = Course.FINISHED
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
    def acts(self) -> tuple[Decision, ...]:
        """The actions to carry out; empty unless the topic will be finished."""
        return self.evaluation.decisions if self.evaluation else ()

    @property
    def proposals(self) -> tuple[Decision, ...]:
        """The actions that await approval; empty unless the topic will be finished."""
        return self.evaluation.proposals if self.evaluation else ()

    @property
    def is_moving(self) -> bool:
        """True if an action is decided or proposed. Both depend on the layout, which must stay as it was
        read.
        """
        return bool(self.acts or self.proposals)

    @property
    def is_new(self) -> bool:
        """True if the evaluation acts, proposes, or refuses something that the previous evaluation did not."""
        return self.is_moving or (self.evaluation is not None and self.digest != self.pending.outcome_digest)

    def decided(self, situation: EvaluationInput, evaluation: Evaluation) -> None:
        """Store an evaluation, the first or a later one."""
        self._situation, self.evaluation = situation, evaluation
        self.digest = digest(evaluation.refusals, self.lanes, self.pending.outcome_digest)

    def drop(self, course: Course) -> None:
        """Remove the topic from the batch. It stays dirty."""
        self.course, self.evaluation = course, None

    def put_aside(self, why: str, error: Exception) -> None:
        """Pause the topic, and store the reason for `inspect.set_aside`."""
        self.set_aside = SetAside(
            f"topic {self.topic_id}", f"{why}: {type(error).__name__}: {error}", self.topic_id
        )
        self.drop(Course.PAUSED)

    def request(self, ordinal: int) -> Request:
        """Return the request of the operation that carries out an action."""
        return Request(
            request_key=f"decision-{self.decision_id}-{ordinal}",
            origin=Origin.AUTO,
            actor=self.decided_by,
            reason=self.acts[ordinal].reason,
            decision_id=self.decision_id,
        )

    def ledger_row(self) -> EvaluationRecord:
        """Return the row of the decision log. Raises an error if JSON cannot represent the inputs."""
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
        """Return the actions for which approval is requested."""
        policy = self.situation.policy
        return [
            NewApproval(
                Subject.OPERATION,
                self._reserved_id(),
                self.topic_id,
                action_text(act),
                act.reason,
                self.decided_by,
                act=act,
                epoch=self.situation.layout.epoch,
                wait_seconds=policy.approval_wait_seconds,
                default_answer=policy.approval_default,
            )
            for act in self.proposals
        ]

    def begun_acts(self) -> list[StartedAction]:
        """Return the approved actions that became operations. Empty for a topic without approvals."""
        if not self.operation_ids or not self.situation.approvals:
            return []
        operations = zip(self.acts, self.operation_ids, strict=True)
        return [StartedAction(self.topic_id, act, operation_id) for act, operation_id in operations]

    def spending(self) -> Spending:
        """Return the reconnections that the actions cause: each client of a sealed segment connects to its
        successors.
        """
        sealed = sum(len(sealed_by(act)) for act in self.acts)
        policy = self.situation.policy
        return Spending(
            self.topic_id,
            float(self.situation.reconnections * sealed),
            policy.reconnections_per_minute,
            policy.cluster_reconnections_per_minute,
        )

    def finished(self) -> FinishedEvaluation:
        """Return the evaluation as made. A topic that is not live has no evaluation; the commit of its
        creation makes the topic dirty.
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
        """Log each action that was decided and each that awaits approval. Call it after the commit."""
        if self.decision_id is None:
            return
        ids = {
            "topic": self.locked.topic if self.locked else "",
            "topic_id": self.topic_id,
            "decision_id": self.decision_id,
            "decided_by": self.decided_by,
        }
        for act, operation_id in zip(self.acts, self.operation_ids, strict=True):
            log.info("decided", **ids, operation_id=operation_id, **_fields(act))
        for act in self.proposals:
            log.info("approval proposed", **ids, **_fields(act))

    def _reserved_id(self) -> int:
        if self.decision_id is None:
            raise InvariantViolated(f"topic {self.topic_id} has no decision id yet; reserve one first")
        return self.decision_id


def _fields(act: Decision) -> dict[str, object]:
    """Return an action as fields of a log line."""
    return {
        "lane": lane_of(act).value,
        "kind": kind_of(act),
        "segment_ids": list(sealed_by(act)),
        "reason": act.reason,
    }
