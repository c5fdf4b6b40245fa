"""Tuning: a small search over a topic's own past for a policy that would have cost less.

The first part of the past is searched, one parameter at a time and then what helped together; the best of that is asked again
on the rest, which the search has not seen. Only what is better there by a margin is proposed, into shadow. Every topic has
an answer: what was looked at, and why nothing was proposed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from controller.domain.errors import Conflict, InvalidPolicy, NotFound, TopicNotFound, TopicNotLive
from controller.domain.policy import AutoScalePolicy, PolicyOverride, UnreadablePolicy, violations
from controller.domain.policy_parameters import ParameterValue
from controller.services.policy_candidates.candidacy import propose
from controller.services.policy_candidates.trials import (
    CANDIDATE,
    IN_FORCE,
    Trial,
    Trials,
    Variant,
    measured_days,
    regret,
)
from controller.store import backtests
from controller.store.backtests import BacktestResult, Subject
from controller.store.decisions import candidates
from controller.store.decisions.candidates import CandidateState
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store

SEARCHED = 0.7
"""The part of the past that is searched; the rest confirms."""
MARGIN = 0.02
"""A candidate costs at least this much less on the rest, or it is not worth anybody's attention."""
DAYS_SEARCHED, DAYS_CONFIRMED = 3.0, 1.0
"""Recorded days needed in each part."""
TURNED_DOWN = timedelta(days=14)
"""What was refused or withdrawn is not proposed again for so long."""

ADAPTIVE, PIP483 = "adaptive", "pip483"
PARAMETERS: Mapping[str, tuple[float, ...]] = {
    "reseal_price_segment_seconds": (1_950.0, 3_900.0, 7_800.0, 15_600.0, 31_200.0),
    "target_use": (0.7, 0.8, 0.9, 1.0),
    "overload_tolerance": (0.0, 0.15, 0.3, 0.6),
}
"""What is tried of `adaptive`, each by itself and then what helped together; `pip483` is tried as it is."""

ALONE = (
    Variant(ADAPTIVE, ADAPTIVE),
    *(
        Variant(f"{ADAPTIVE} {parameter}={value:g}", ADAPTIVE, {parameter: value})
        for parameter, values in PARAMETERS.items()
        for value in values
    ),
    Variant(PIP483, PIP483),
)


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """What to tune: these topics, or all that are live (None), on the last `days`. A repeat under the same key finds the
    backtests that it has run.
    """

    topics: tuple[str, ...] | None
    days: float
    actor: str
    request_key: str


@dataclass(frozen=True, slots=True)
class TunedTopic:
    """What came out for one topic. `searched` and `confirmed` are regrets by policy, `why` says what was or was not done."""

    topic: str
    why: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    looked_at: int = 0
    searched: Mapping[str, float] = field(default_factory=dict)
    confirmed: Mapping[str, float] = field(default_factory=dict)
    run_ids: tuple[int, ...] = ()
    candidate_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """The best of the search for one topic: the parameters that differ from what is in force, and what was seen."""

    subject: Subject
    variant: Variant
    parameters: Mapping[str, Any]
    seen: Mapping[str, BacktestResult]
    run_ids: tuple[int, ...]

    def answer(self, why: str) -> TunedTopic:
        searched = {name: regret(self.seen[name]) for name in (IN_FORCE, self.variant.name)}
        return TunedTopic(
            self.subject.name, why, self.parameters, len(self.seen) - 1, searched, run_ids=self.run_ids
        )


def tune(store: Store, trials: Trials, request: TuningRequest) -> list[TunedTopic]:
    """Search, confirm, propose; one answer a topic, by name. Raises NotFound for a topic that is not live."""
    with store.transaction() as tx:
        until = database_now(tx)
        since = until - timedelta(days=request.days)
        found = backtests.subjects(tx, since, until, names=request.topics)
        missing = sorted({*(request.topics or ())} - {one.name for one in found})
        in_shadow = {one.topic_id: one for one in candidates.in_shadow(tx, [s.topic_id for s in found])}
    if missing:
        raise NotFound(f"there is no live topic {', '.join(missing)}; `cleave topics list` has their names")
    answers = {s.name: TunedTopic(s.name, why) for s in found if (why := _why_not(s, in_shadow.keys()))}
    subjects = [one for one in found if one.name not in answers]
    if subjects:
        search = _Search(trials, request, since, since + SEARCHED * (until - since), until)
        best: list[_Found] = []
        for one in search.best_of(subjects):
            if isinstance(one, TunedTopic):
                answers[one.topic] = one
            else:
                best.append(one)
        answers |= {one.topic: one for one in _confirmed(store, search, best)}
    return [answers[name] for name in sorted(answers)]


def _why_not(subject: Subject, in_shadow: Collection[int]) -> str | None:
    """Why a topic is not searched at all."""
    policy = subject.policy
    if isinstance(policy, UnreadablePolicy):
        return f"its policy cannot be read: {policy.why}"
    if violations(policy):
        return f"its policy is not valid: {violations(policy)[0]}"
    if not policy.enabled:
        return "its policy is not enabled"
    if policy.strict_pulsar:
        return "strict_pulsar asks for Pulsar's own rules, which have nothing to tune"
    if subject.topic_id in in_shadow:
        return "it has a candidate in shadow already; promote or withdraw that one first"
    return None


@dataclass(frozen=True, slots=True)
class _Search:
    """The trials of one tuning: from `since` until `middle` it searches, from there until `until` it confirms."""

    trials: Trials
    request: TuningRequest
    since: datetime
    middle: datetime
    until: datetime

    def best_of(self, subjects: Sequence[Subject]) -> Iterable[TunedTopic | _Found]:
        """What did best on the first part, for each topic; or why there is nothing."""
        live = self._searched((Variant(IN_FORCE),), [one.name for one in subjects], "in-force")
        if isinstance(live, str):
            yield from (TunedTopic(one.name, live) for one in subjects)
            return
        short = {one.name: why for one in subjects if (why := _too_short(live, one.name)) is not None}
        yield from (TunedTopic(name, why, run_ids=(live.run_id,)) for name, why in short.items())
        subjects = [one for one in subjects if one.name not in short]
        alone = self._searched(ALONE, [one.name for one in subjects], "alone") if subjects else ""
        if isinstance(alone, str):
            yield from (TunedTopic(one.name, alone) for one in subjects)
            return
        together = {one.name: _together(alone.of(one.name)) for one in subjects}
        combined = {
            variant.name: trial
            for variant, names in _grouped(together)
            if isinstance(trial := self._searched((variant,), names, variant.name), Trial)
        }
        for one in subjects:
            variant = together[one.name]
            more = combined.get(variant.name) if variant else None
            yield self._best(one, (live, alone, *((more,) if more else ())), variant)

    def confirm(self, variant: Variant, topics: Sequence[str]) -> Trial | str:
        """The policy in force beside this one, on the part that was not searched; or why that cannot be said."""
        asked = (Variant(IN_FORCE), replace(variant, name=CANDIDATE))
        return self._trial(asked, topics, self.middle, self.until, f"confirm {variant.name}")

    def _searched(self, variants: Sequence[Variant], topics: Sequence[str], what: str) -> Trial | str:
        return self._trial(variants, topics, self.since, self.middle, f"search {what}")

    def _trial(
        self, variants: Sequence[Variant], topics: Sequence[str], since: datetime, until: datetime, what: str
    ) -> Trial | str:
        asked = self.request
        try:
            return self.trials(
                variants,
                topics,
                since,
                until,
                asked_by=asked.actor,
                request_key=f"{asked.request_key}/{what}",
            )
        except NotFound as error:
            return error.message

    @staticmethod
    def _best(subject: Subject, trials: Sequence[Trial], variant: Variant | None) -> TunedTopic | _Found:
        seen = {name: result for trial in trials for name, result in trial.of(subject.name).items()}
        by_name = {one.name: one for one in (*ALONE, *((variant,) if variant else ()))}
        name = min(by_name.keys() & seen.keys(), key=lambda one: (seen[one].cost, one))
        parameters = _changes(by_name[name], subject.policy)
        found = _Found(subject, by_name[name], parameters, seen, tuple(trial.run_id for trial in trials))
        if not parameters or seen[name].cost >= seen[IN_FORCE].cost:
            return replace(
                found.answer("nothing that was tried cost less than the policy in force"), parameters={}
            )
        return found


def _too_short(live: Trial, topic: str) -> str | None:
    """Why there is too little of a topic's past to search in; None where there is enough."""
    found = live.of(topic).get(IN_FORCE)
    if found is None:
        return live.left_out.get(topic, "no load was recorded")
    return _too_little(found, DAYS_SEARCHED, "search") if measured_days(found) < DAYS_SEARCHED else None


def _together(seen: Mapping[str, BacktestResult]) -> Variant | None:
    """Of each parameter the value that helped most by itself; None unless at least two of them helped."""
    if ADAPTIVE not in seen:
        return None
    helped: dict[str, float] = {}
    for parameter, values in PARAMETERS.items():
        costs = {value: seen[f"{ADAPTIVE} {parameter}={value:g}"].cost for value in values}
        value = min(costs, key=lambda one: (costs[one], one))
        if costs[value] < seen[ADAPTIVE].cost:
            helped[parameter] = value
    if len(helped) < 2:
        return None
    name = " ".join([ADAPTIVE, *(f"{parameter}={value:g}" for parameter, value in helped.items())])
    return Variant(name, ADAPTIVE, helped)


def _grouped(variants: Mapping[str, Variant | None]) -> list[tuple[Variant, list[str]]]:
    """Each variant with the topics that it is for."""
    groups: dict[str, tuple[Variant, list[str]]] = {}
    for topic, variant in variants.items():
        if variant is not None:
            groups.setdefault(variant.name, (variant, []))[1].append(topic)
    return list(groups.values())


def _changes(variant: Variant, live: AutoScalePolicy) -> dict[str, ParameterValue]:
    """What the variant sets that is not in force."""
    asked: dict[str, ParameterValue] = {"profile": variant.rule, **variant.parameters}
    return {parameter: value for parameter, value in asked.items() if getattr(live, parameter) != value}


def _confirmed(store: Store, search: _Search, best: Sequence[_Found]) -> Iterable[TunedTopic]:
    """Ask again on the rest, and propose what is better there."""
    found = {one.subject.name: one for one in best}
    for variant, topics in _grouped(
        {topic: Variant(_name(one.parameters), IN_FORCE, one.parameters) for topic, one in found.items()}
    ):
        trial = search.confirm(variant, topics)
        for topic in topics:
            yield _judged(store, search.request, found[topic], trial)


def _name(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{parameter}={value}" for parameter, value in sorted(parameters.items()))


def _judged(store: Store, request: TuningRequest, found: _Found, trial: Trial | str) -> TunedTopic:
    if isinstance(trial, str):
        return found.answer(trial)
    results = trial.of(found.subject.name)
    if results.keys() != {IN_FORCE, CANDIDATE}:
        return found.answer(trial.left_out.get(found.subject.name, "no load was recorded"))
    live, proposed = results[IN_FORCE], results[CANDIDATE]
    answer = replace(
        found.answer(""),
        confirmed={name: regret(one) for name, one in results.items()},
        run_ids=(*found.run_ids, trial.run_id),
    )
    if measured_days(live) < DAYS_CONFIRMED:
        return replace(answer, why=_too_little(live, DAYS_CONFIRMED, "confirm"))
    if not proposed.cost < (1 - MARGIN) * live.cost:
        return replace(
            answer,
            why=f"not confirmed: regret {regret(proposed):.3f} against {regret(live):.3f} on days that were not searched; "
            f"{MARGIN:.0%} less is needed",
        )
    return _proposed(store, request, found, trial.run_id, answer)


def _proposed(
    store: Store, request: TuningRequest, found: _Found, run_id: int, answer: TunedTopic
) -> TunedTopic:
    override = PolicyOverride(**found.parameters)
    with store.transaction() as tx:
        since = database_now(tx) - TURNED_DOWN
        before = candidates.turned_down(tx, found.subject.topic_id, override, since)
    if before is not None:
        ended = "refused" if before.state is CandidateState.REFUSED else "withdrawn"
        return replace(
            answer, why=f"the same was {ended} as candidate {before.candidate_id}: {before.outcome}"
        )
    figures = answer.confirmed
    reason = (
        f"found by search: regret {figures[CANDIDATE]:.3f} against {figures[IN_FORCE]:.3f} of the policy in force, on days "
        "that were not searched"
    )
    try:
        proposal = propose(
            store, found.subject.name, override, actor=request.actor, reason=reason, run_id=run_id
        )
    except (Conflict, InvalidPolicy, TopicNotFound, TopicNotLive) as error:
        return replace(answer, why=f"not proposed: {error.message}")
    return replace(answer, why=reason, candidate_id=proposal.candidate.candidate_id)


def _too_little(result: BacktestResult, needed: float, what: str) -> str:
    return f"{measured_days(result):.1f} recorded days to {what} in, and {needed:g} are needed"
