"""Shadow evaluations: candidates are evaluated in the batch of the live policy and on the same inputs, and
never acted on.

The only results are rows of `shadow_decision`. The live decision neither waits for a candidate nor depends on
it: after an error here, the transaction returns to a savepoint and the error is logged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from controller import telemetry
from controller.domain.decision import Evaluation, Lane
from controller.domain.errors import InvalidInput
from controller.domain.evaluation_input import Capabilities, EvaluationInput
from controller.domain.evaluator import code_version, decide
from controller.domain.policy import AutoScalePolicy, PolicyOverride, UnreadablePolicy, resolve
from controller.services.autoscaler.outcome_digest import shadow_digest
from controller.store.decisions import candidates, evaluation_inputs, shadow_decisions
from controller.store.decisions.candidates import ShadowCandidate
from controller.store.decisions.shadow_decisions import ShadowRow

log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shadow:
    """The evaluation of a candidate for a topic, and its inputs. `outcome_digest` is compared with the digest of the
    candidate's previous evaluation; None if nothing is decided or refused.
    """

    candidate: ShadowCandidate
    situation: EvaluationInput
    evaluation: Evaluation
    outcome_digest: str | None


def evaluate_candidates(
    tx: Connection,
    live_inputs: Mapping[int, EvaluationInput],
    capabilities: Mapping[str, Capabilities],
    lanes: frozenset[Lane],
) -> list[Shadow]:
    """Evaluate the candidates of the topics in `live_inputs`, which holds the inputs of the live evaluations by topic
    id. Return the shadow evaluations that differ from the previous evaluation of the same candidate; a topic without
    a candidate in shadow has none. `capabilities` are those of the data planes, by name. Stores nothing. Call it
    before the live policy acts, since an intent would change the inputs.

    The function runs in a savepoint of `tx`. A candidate that cannot be evaluated is logged and skipped. After any
    other error, which is logged, the list is empty. Only the loss of the connection is raised, as DBAPIError.
    """
    with _beside_live_policy(tx, "shadow evaluations not made", topics=len(live_inputs)):
        return _evaluate(tx, live_inputs, capabilities, lanes)
    return []


def record(
    tx: Connection,
    shadows: Collection[Shadow],
    live_evaluations: Mapping[int, Evaluation],
    decision_ids: Mapping[int, int],
    *,
    lanes: frozenset[Lane],
    decided_by: str,
) -> None:
    """Store the shadow evaluations of those topics that are in `live_evaluations`, which holds the live evaluations
    by topic id; the others are ignored. `decision_ids` maps topic ids to the rows of the live evaluations in the
    decision log; a topic without such a row is absent. `lanes` and `decided_by` are stored with each row.

    The function runs in a savepoint of `tx`. A shadow evaluation whose inputs JSON cannot represent is logged and
    left out. After any other error, which is logged, nothing is stored. Only the loss of the connection is raised, as
    DBAPIError.
    """
    recorded = [shadow for shadow in shadows if shadow.candidate.topic_id in live_evaluations]
    if not recorded:
        return
    with _beside_live_policy(tx, "shadow evaluations not stored", rows=len(recorded)):
        rows = [_row(shadow, live_evaluations, decision_ids, lanes, decided_by) for shadow in recorded]
        shadow_decisions.record(tx, [row for row in rows if row is not None])


@contextmanager
def _beside_live_policy(tx: Connection, failure: str, **counts: int) -> Iterator[None]:
    """Run the block in a savepoint. If the block raises an error, roll back to the savepoint, log the error as the
    event `failure` with the fields `counts`, and continue after the block, because an error of a candidate must not
    stop the live policy. An error that has ended the connection is raised instead, since the live decisions cannot be
    written either.
    """
    try:
        with tx.begin_nested():
            yield
    except Exception as error:
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            raise
        log.exception(failure, **counts)


def _row(
    shadow: Shadow,
    live_evaluations: Mapping[int, Evaluation],
    decision_ids: Mapping[int, int],
    lanes: frozenset[Lane],
    decided_by: str,
) -> ShadowRow | None:
    """Return the shadow evaluation as a row to store. If JSON cannot represent the inputs, log an error and
    return None.
    """
    topic_id, situation = shadow.candidate.topic_id, shadow.situation
    try:
        inputs = situation.to_json()
    except ValueError:
        log.exception("inputs of a candidate not stored", topic_id=topic_id)
        return None
    return ShadowRow(
        candidate_id=shadow.candidate.candidate_id,
        topic_id=topic_id,
        decided_at=situation.now,
        epoch=situation.layout.epoch,
        lanes=lanes,
        decided_by=decided_by,
        code_version=code_version(situation.policy),
        evaluation=shadow.evaluation,
        live=live_evaluations[topic_id],
        decision_id=decision_ids.get(topic_id),
        outcome_digest=shadow.outcome_digest,
        situation=inputs,
    )


def _evaluate(
    tx: Connection,
    live_inputs: Mapping[int, EvaluationInput],
    capabilities: Mapping[str, Capabilities],
    lanes: frozenset[Lane],
) -> list[Shadow]:
    """Return the evaluations of the candidates in shadow that differ from the previous evaluation of the same
    candidate. The inputs are read again in this transaction, except the time, which is that of `live_inputs`. The
    policy is the policy in `live_inputs`, overridden by the parameters of the candidate. A candidate that cannot be
    evaluated is logged and skipped. Raises DBAPIError, and Retryable errors.
    """
    in_shadow = {candidate.topic_id: candidate for candidate in candidates.in_shadow(tx, live_inputs.keys())}
    if not in_shadow:
        return []
    policies = {
        topic_id: _policy(live_inputs[topic_id].policy, candidate)
        for topic_id, candidate in in_shadow.items()
    }
    readable, unreadable = evaluation_inputs.load_readable(
        tx, in_shadow.keys(), capabilities, instead=policies
    )
    for topic_id, error in unreadable.items():
        log.error("cannot evaluate a candidate", topic_id=topic_id, exc_info=error)
    shadows = []
    for topic_id, situation in readable.items():
        try:
            shadow = _shadow(in_shadow[topic_id], replace(situation, now=live_inputs[topic_id].now), lanes)
        except Exception:
            log.exception(
                "cannot evaluate a candidate",
                topic_id=topic_id,
                candidate_id=in_shadow[topic_id].candidate_id,
            )
        else:
            if shadow.outcome_digest != in_shadow[topic_id].outcome_digest:
                shadows.append(shadow)
    return shadows


def _shadow(candidate: ShadowCandidate, situation: EvaluationInput, lanes: frozenset[Lane]) -> Shadow:
    """Evaluate the candidate on the inputs `situation`, and return the evaluation with its digest."""
    evaluation = decide(situation, lanes)
    outcome_digest = shadow_digest(evaluation, lanes, candidate.outcome_digest)
    return Shadow(candidate, situation, evaluation, outcome_digest)


def _policy(live: AutoScalePolicy, candidate: ShadowCandidate) -> AutoScalePolicy:
    """Return the policy that would be in force with the candidate's parameters: `live`, the policy in force, with
    these parameters in place of its own. If the parameters cannot be read, return a policy that refuses every action
    and names the error.
    """
    try:
        return resolve(live, PolicyOverride.from_document(candidate.override))
    except InvalidInput as error:
        return UnreadablePolicy(why=f"the candidate: {error.message}")
