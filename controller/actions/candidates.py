"""Actions on candidates: propose a policy into shadow, withdraw it, and promote it if it would have cost less
on the topic's own past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from controller.actions import backtest_rows
from controller.actions.action import Action
from controller.actions.context import Context
from controller.actions.fields import ActionRequest, PolicyParameters, Reason, TopicName, TopicRequest
from controller.actions.responses import Response, Row
from controller.actions.rights import Right
from controller.backtest.summary import summary_by_policy
from controller.bootstrap import build_trials
from controller.domain.errors import InvalidInput
from controller.domain.policy import PolicyOverride
from controller.services import policy_candidates
from controller.store.decisions.candidates import CandidateRow, CandidateState, parameters_text

MOST_DAYS = 30
"""Maximum number of days on which a server compares a candidate: half a minute of computing, mostly for
reading, without Spark.
"""
WEIGHING_SECONDS = 240.0
"""Seconds that a server has for the backtest of a candidate."""
EXIT_NOT_BETTER = 1
"""Exit code of the command if the candidate is not better than the policy in force."""
_PATH = "/topics/{topic}/candidate"


class ProposeCandidate(ActionRequest):
    """Propose a candidate policy for a topic: Cleave evaluates the candidate in shadow, in addition to the policy
    in force, and never performs the candidate's decisions.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"parameters": {"target_use": 0.8}, "reason": "fewer segments at night"}]
        }
    )

    topic: TopicName
    parameters: Annotated[
        PolicyParameters,
        Field(
            description="Parameters that the candidate sets on top of the policy in force, for example target_use=0.8.",
            examples=[{"target_use": 0.8}],
        ),
    ]
    reason: Reason | None = Field(
        None,
        description="Reason, for the person who promotes the candidate.",
        examples=["fewer segments at night"],
    )


class WithdrawCandidate(TopicRequest):
    """Withdraw a topic's candidate from shadow. The policy in force stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "not before the holidays"}]})


class PromoteCandidate(ActionRequest):
    """Compare a topic's candidate with the policy in force on the topic's own past. Put the candidate in
    force if it would have cost less; otherwise refuse it.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"days": 14, "ask": True}]})

    topic: TopicName
    days: int = Field(
        policy_candidates.DAYS,
        ge=policy_candidates.DAYS_NEEDED,
        le=400,
        description=f"Days of the topic's own past on which both policies are compared. Default: {policy_candidates.DAYS}.",
    )
    ask: bool = Field(
        False,
        description="Request an approval for a candidate that would have cost less, instead of putting it in force. The approval expires after a week.",
    )


class CandidateResponse(Response):
    """A candidate after the action; in a dry run, as it would be."""

    topic: str = Field(examples=["topic://acme/shop/orders"])
    candidate_id: int | None = Field(description="Null in a dry run of a proposal.", examples=[3])
    topic_id: int
    override: dict[str, Any] = Field(
        description="Parameters that the candidate sets on top of the policy in force.",
        examples=[{"target_use": 0.8}],
    )
    proposed_at: datetime = Field(examples=["2026-11-21T03:00:00Z"])
    proposed_by: str = Field(examples=["ada"])
    reason: str = Field(examples=["fewer segments at night"])
    state: CandidateState = Field(examples=["shadow"])
    run_id: int | None = Field(description="Id of the backtest that is the evidence for the candidate.")
    ended_at: datetime | None
    ended_by: str | None
    outcome: str | None = Field(description="Reason why the candidate ended.")

    def sentence(self) -> str:
        """Return a sentence with the topic, id, parameters and state of the candidate."""
        return f"{self.name} {'would be' if self.dry_run else 'is'} {self.state}"

    @property
    def name(self) -> str:
        """Topic, id and parameters of the candidate, as text."""
        return f"{self.topic}: candidate {self.candidate_id} ({parameters_text(self.override)})"


class ProposedCandidate(CandidateResponse):
    """A candidate in shadow."""

    was_there: bool = Field(description="The candidate was proposed before, with the same parameters.")

    def sentence(self) -> str:
        """Return a sentence that says whether the candidate is, was already, or would be in shadow."""
        if self.dry_run and not self.was_there:
            return f"{self.topic}: a candidate ({parameters_text(self.override)}) would be in shadow"
        return f"{self.name} {'was' if self.was_there else 'is'} in shadow"


class WeighedCandidate(CandidateResponse):
    """A candidate that was compared with the policy in force. In a dry run the candidate is still in shadow."""

    is_better: bool = Field(
        description="The candidate would have cost less, so it is promoted; else it is refused."
    )
    evidence: str = Field(
        description="Regrets of both policies.",
        examples=["regret 1.120 against 1.310 of the policy in force, on 14.0 recorded days (backtest 7)"],
    )
    waits: bool = Field(description="The candidate awaits approval.")
    had_ended: bool = Field(
        description="The candidate had ended before the request, so nothing was compared or changed."
    )
    results: list[dict[str, Any]] = Field(
        description="One row for each policy: in-force and candidate.",
        examples=[[{"policy": "in-force", "regret": 1.31}, {"policy": "candidate", "regret": 1.12}]],
    )

    def sentence(self) -> str:
        """Return a sentence that says whether the candidate is, was already, or would be promoted, refused or waiting for an approval, with
        the evidence.
        """
        verb = "was" if self.had_ended else "would be" if self.dry_run else "is"
        end = ("promoted" if self.is_better else "refused") if self.dry_run else self.state
        if self.waits:
            end = "in shadow, and waits for an approval"
        return f"{self.name} {verb} {end}: {self.evidence}"

    def title(self) -> str:
        """Return the sentence, because the rows have the figures of both policies, but not the decision."""
        return self.sentence()

    def rows(self) -> Sequence[Row]:
        """Return one summary row for each of the two policies, least regret first; none if nothing was compared."""
        rows = backtest_rows.cells(summary_by_policy(self.results))
        return [{column: row[column] for column in backtest_rows.SUMMARY} for row in rows]

    @property
    def exit_code(self) -> int:
        """0 if the candidate is better than the policy in force, or was promoted before; otherwise
        `EXIT_NOT_BETTER`.
        """
        return 0 if self.is_better else EXIT_NOT_BETTER


def propose(context: Context, request: ProposeCandidate) -> ProposedCandidate:
    """Put a candidate with the request's parameters into shadow and return it; in a dry run its `candidate_id` is None. A candidate with
    the same parameters that is already in shadow is returned unchanged, with its id, instead. Raises TopicNotFound, TopicNotLive,
    InvalidInput without a parameter or for a parameter that is null, InvalidPolicy for parameters that do not fit the policy in force, and
    Conflict if another candidate is in shadow.
    """
    for parameter, value in request.parameters.items():
        if value is None:
            raise InvalidInput(f"{parameter}=null: give the value that the candidate sets")
    candidate, was_there = policy_candidates.propose(
        context.store,
        request.topic,
        PolicyOverride.from_document(request.parameters),
        actor=context.caller.actor,
        reason=context.reason_of(request.reason),
    )
    fields = _fields(context, request.topic, candidate)
    if context.dry_run and not was_there:
        fields["candidate_id"] = None
    return ProposedCandidate(**fields, was_there=was_there)


def withdraw(context: Context, request: WithdrawCandidate) -> CandidateResponse:
    """Withdraw the topic's newest candidate and return it; a candidate that was withdrawn before is returned unchanged. Raises
    TopicNotFound, NotFound if there is no candidate, and Conflict if the candidate was promoted or refused.
    """
    candidate = policy_candidates.withdraw(
        context.store,
        request.topic,
        actor=context.caller.actor,
        reason=context.reason_of(request.reason),
    )
    return CandidateResponse(**_fields(context, request.topic, candidate))


def promote(context: Context, request: PromoteCandidate) -> WeighedCandidate:
    """Backtest the topic's newest candidate and the policy in force on the last `days` days, then promote the candidate if
    it would have cost less, otherwise refuse it (at equal cost too); with `ask`, request an approval instead of
    promoting. The backtest is stored. A dry run compares the two only, and stores nothing. A candidate that was promoted
    or refused before is returned as it is, without a backtest; so is a candidate that another request promotes or refuses
    during the backtest.

    Raises InvalidInput for more than `MOST_DAYS` days on a server, TopicNotFound, NotFound without a candidate, Conflict
    for a withdrawn candidate, fewer recorded days than `DAYS_NEEDED` or a backtest without a result, and the errors of
    the backtest. Outside a dry run, also raises TopicNotLive, and LostRace if the policy in force was changed in the
    meantime.
    """
    if context.computation is not None and request.days > MOST_DAYS:
        raise InvalidInput(
            f"days must be at most {MOST_DAYS} on a server, not {request.days}; choose fewer days, or trigger the DAG "
            "policy_promote"
        )
    trials = build_trials(replace(context.app, store=context.store), context.computation)
    caller = context.caller
    arguments: dict[str, Any] = {
        "days": request.days,
        "actor": caller.actor,
        "request_key": caller.request_key,
    }
    promotion = policy_candidates.promote(
        context.store, trials, request.topic, **arguments, with_approval=request.ask
    )
    return _weighed(context, promotion)


def _weighed(context: Context, promotion: policy_candidates.Promotion) -> WeighedCandidate:
    """Return the response about a promotion. Without a comparison, the candidate had ended before the request, or another request
    ended it during the backtest.
    """
    comparison, candidate = promotion.weighed, promotion.candidate
    return WeighedCandidate(
        **_fields(context, promotion.topic, candidate),
        is_better=promotion.is_promoted if comparison is None else comparison.is_better,
        waits=promotion.waits,
        evidence=candidate.outcome or "" if comparison is None else comparison.sentence,
        had_ended=comparison is None,
        results=[]
        if comparison is None
        else backtest_rows.result_rows((comparison.live, comparison.proposed)),
    )


def _fields(context: Context, topic: str, candidate: CandidateRow) -> dict[str, Any]:
    """Return the fields of `CandidateResponse`, by name."""
    return {"topic": topic, **asdict(candidate), "dry_run": context.dry_run}


ACTIONS = (
    Action("policy propose", _PATH, Right.OPERATE, ProposeCandidate, ProposedCandidate, propose),
    Action(
        "policy withdraw",
        _PATH,
        Right.OPERATE,
        WithdrawCandidate,
        CandidateResponse,
        withdraw,
        method="DELETE",
    ),
    Action(
        "policy promote",
        f"{_PATH}/promote",
        Right.OPERATE,
        PromoteCandidate,
        WeighedCandidate,
        promote,
        answer_seconds=WEIGHING_SECONDS,
        computes=True,
    ),
)
