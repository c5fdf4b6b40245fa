"""Candidates in shadow: asked beside the live policy, in the same batch and on the same inputs, and never acted on.

All that comes out is rows of `shadow_decision`. The live decision does not wait for a candidate and knows nothing of it:
whatever goes wrong here is taken back to a savepoint and logged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from controller import telemetry
from controller.domain.decision import Evaluation, Lane
from controller.domain.errors import InvalidInput
from controller.domain.evaluator import code_version, decide
from controller.domain.policy import AutoScalePolicy, PolicyOverride, UnreadablePolicy, resolve
from controller.domain.situation import Capabilities, Situation
from controller.services.autoscaler.verdicts import shadow_digest
from controller.store.decisions import candidates, shadow_decisions, situations
from controller.store.decisions.candidates import InShadow
from controller.store.decisions.shadow_decisions import ShadowRow

log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a candidate said about a topic, on which situation."""

    candidate: InShadow
    situation: Situation
    evaluation: Evaluation
    outcome_digest: str | None


def ask(
    tx: Connection,
    live: Mapping[int, Situation],
    capabilities: Mapping[str, Capabilities],
    lanes: frozenset[Lane],
) -> list[Shadow]:
    """The candidates of these topics that have something new to say; to be called before the live policy acts. Raises
    nothing but the loss of the connection.
    """
    try:
        with tx.begin_nested():
            return _asked(tx, live, capabilities, lanes)
    except Exception as error:  # what is in shadow must not stop what is live
        if _is_connection_lost(error):
            raise
        log.exception("candidates in shadow could not be asked", topics=len(live))
        return []


def record(
    tx: Connection,
    shadows: Collection[Shadow],
    live: Mapping[int, Evaluation],
    decision_ids: Mapping[int, int],
    *,
    lanes: frozenset[Lane],
    decided_by: str,
) -> None:
    """Writes down what was said about the topics that have a live verdict, beside it. Raises nothing but the loss of
    the connection.
    """
    said = [shadow for shadow in shadows if shadow.candidate.topic_id in live]
    if not said:
        return
    try:
        with tx.begin_nested():
            rows = [_row(one, live, decision_ids, lanes, decided_by) for one in said]
            shadow_decisions.record(tx, [row for row in rows if row is not None])
    except Exception as error:  # what is in shadow must not stop what is live
        if _is_connection_lost(error):
            raise
        log.exception("decisions in shadow could not be written", rows=len(said))


def _is_connection_lost(error: Exception) -> bool:
    """Return True if what is live cannot be written either. The store says so, in one line."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _row(
    shadow: Shadow,
    live: Mapping[int, Evaluation],
    decision_ids: Mapping[int, int],
    lanes: frozenset[Lane],
    decided_by: str,
) -> ShadowRow | None:
    """Return the row; None, after a line in the log, if JSON cannot hold the inputs."""
    topic_id, situation = shadow.candidate.topic_id, shadow.situation
    try:
        kept = situation.to_json()
    except ValueError:
        log.exception("a candidate's inputs cannot be kept", topic_id=topic_id)
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
        live=live[topic_id],
        decision_id=decision_ids.get(topic_id),
        outcome_digest=shadow.outcome_digest,
        situation=kept,
    )


def _asked(
    tx: Connection,
    live: Mapping[int, Situation],
    capabilities: Mapping[str, Capabilities],
    lanes: frozenset[Lane],
) -> list[Shadow]:
    found = {one.topic_id: one for one in candidates.in_shadow(tx, live.keys())}
    if not found:
        return []
    policies = {topic_id: _policy(live[topic_id].policy, one) for topic_id, one in found.items()}
    asked, unreadable = situations.load_readable(tx, found.keys(), capabilities, instead=policies)
    for topic_id, error in unreadable.items():
        log.error("cannot evaluate a candidate", topic_id=topic_id, exc_info=error)
    shadows = []
    for topic_id, situation in asked.items():
        try:
            shadow = _said(found[topic_id], replace(situation, now=live[topic_id].now), lanes)
        except Exception:
            log.exception(
                "cannot evaluate a candidate",
                topic_id=topic_id,
                candidate_id=found[topic_id].candidate_id,
            )
        else:
            if shadow.outcome_digest != found[topic_id].outcome_digest:
                shadows.append(shadow)
    return shadows


def _said(candidate: InShadow, situation: Situation, lanes: frozenset[Lane]) -> Shadow:
    evaluation = decide(situation, lanes)
    said = shadow_digest(evaluation, lanes, candidate.outcome_digest)
    return Shadow(candidate, situation, evaluation, said)


def _policy(live: AutoScalePolicy, candidate: InShadow) -> AutoScalePolicy:
    """What would be in force with the candidate's parameters; refused as a whole where they cannot be read."""
    try:
        return resolve(live, PolicyOverride.from_document(candidate.override))
    except InvalidInput as error:
        return UnreadablePolicy(why=f"the candidate: {error.message}")
