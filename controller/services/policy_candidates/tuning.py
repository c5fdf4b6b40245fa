"""Tuning: a small search over a topic's own past for a policy that would have cost less.

The first part of the past is searched: one parameter at a time, then the parameters that helped together. The
best variant is evaluated on the rest, which the search has not seen. A variant is proposed into shadow only
if it is better there by a margin. Every topic gets a result: the variants that were tried, and the reason if
nothing was proposed.
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
    Trials,
    Variant,
    measured_days,
    regret,
)
from controller.store import backtests
from controller.store.backtests import BacktestAnswer, BacktestResult, Subject
from controller.store.decisions import candidates
from controller.store.decisions.candidates import CandidateState
from controller.store.postgres.clock import database_now
from controller.store.postgres.engine import Store

SEARCH_SHARE = 0.7
"""Share of the past that is searched; the rest confirms the result."""
MARGIN = 0.02
"""Minimum relative saving of a candidate on the rest of the past. A smaller saving is not proposed."""
DAYS_SEARCHED, DAYS_CONFIRMED = 3.0, 1.0
"""Minimum number of recorded days in each part."""
TURNED_DOWN = timedelta(days=14)
"""Time in which a refused or withdrawn candidate is not proposed again."""

_NO_RESULT = "at least one variant has no result for it in the backtest"
ADAPTIVE, PIP483 = "adaptive", "pip483"
PARAMETERS: Mapping[str, tuple[float, ...]] = {
    "reseal_price_segment_seconds": (1_950.0, 3_900.0, 7_800.0, 15_600.0, 31_200.0),
    "target_use": (0.7, 0.8, 0.9, 1.0),
    "overload_tolerance": (0.0, 0.15, 0.3, 0.6),
}
"""Values that are tried for each parameter of `adaptive`: each alone, then the helpful values together.
`pip483` is tried unchanged.
"""

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
class TunedTopic:
    """Result for one topic. `looked_at` is the number of variants that were searched. `parameters` are the
    parameters of the best variant that differ from the policy in force. `searched` and `confirmed` are regrets by
    policy, in the two parts of the past; `why` says why a candidate was or was not proposed. `run_ids` are the
    backtest runs. `candidate_id` is None if no candidate was proposed.
    """

    topic: str
    why: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    looked_at: int = 0
    searched: Mapping[str, float] = field(default_factory=dict)
    confirmed: Mapping[str, float] = field(default_factory=dict)
    run_ids: tuple[int, ...] = ()
    candidate_id: int | None = None


@dataclass(frozen=True, slots=True)
class _SearchResult:
    """The best variant of the search for one topic, its parameters that differ from the policy in force, and
    all results.
    """

    subject: Subject
    variant: Variant
    parameters: Mapping[str, Any]
    results_by_name: Mapping[str, BacktestResult]
    run_ids: tuple[int, ...]

    def answer(self, reason: str) -> TunedTopic:
        """Return the result for the topic with this reason (`why`), the best variant's parameters, and the regrets of
        the policy in force and of the best variant in the search. The result has no candidate id, and no regrets of a
        confirmation.
        """
        searched_regrets = {
            name: regret(self.results_by_name[name]) for name in (IN_FORCE, self.variant.name)
        }
        return TunedTopic(
            self.subject.name,
            reason,
            self.parameters,
            len(self.results_by_name) - 1,
            searched_regrets,
            run_ids=self.run_ids,
        )


def tune(
    store: Store,
    trials: Trials,
    topics: Collection[str] | None,
    *,
    days: float,
    actor: str,
    request_key: str,
) -> list[TunedTopic]:
    """Search for a better policy for each of `topics`, or for each live topic (None), on the last `days`, and propose
    the best variant of a topic into shadow if a second part of the past confirms it. Return one result per topic,
    ordered by name. A result without a candidate says why. All backtests are stored. A repeated call with the same
    `request_key` uses the backtests that were already run, for topics whose policy in force has not changed since.

    A topic is not searched if its policy cannot be read, is not valid or not enabled, or follows Pulsar's own rules,
    or if the topic has a candidate in shadow. A confirmed variant is not proposed if it was refused or withdrawn
    within `TURNED_DOWN`, or if `propose` refuses it. Raises NotFound, before any search, if a requested topic is not
    live. Also raises the errors of `trials` except NotFound, and the errors of `Store.transaction`; candidates that
    were proposed before such an error stay.
    """
    with store.transaction() as tx:
        until = database_now(tx)
        since = until - timedelta(days=days)
        live_topics = backtests.subjects(tx, since, until, names=topics)
        missing = sorted({*(topics or ())} - {subject.name for subject in live_topics})
        shadow_ids = {
            candidate.topic_id
            for candidate in candidates.in_shadow(tx, [subject.topic_id for subject in live_topics])
        }
    if missing:
        raise NotFound(
            f"there is no live topic {', '.join(missing)}; list the names with `cleave topics list`"
        )
    results = {
        s.name: TunedTopic(s.name, reason)
        for s in live_topics
        if (reason := _reason_not_to_search(s, shadow_ids))
    }
    subjects = [subject for subject in live_topics if subject.name not in results]
    if subjects:
        middle = since + SEARCH_SHARE * (until - since)
        policies = {subject.name: subject.policy for subject in subjects}
        search = _Search(store, trials, actor, request_key, policies, since, middle, until)
        search_results: list[_SearchResult] = []
        for result in search.best_of(subjects):
            if isinstance(result, TunedTopic):
                results[result.topic] = result
            else:
                search_results.append(result)
        results |= {tuned.topic: tuned for tuned in _confirm_and_propose(store, search, search_results)}
    return [results[name] for name in sorted(results)]


def _reason_not_to_search(subject: Subject, in_shadow: Collection[int]) -> str | None:
    """Return the reason why the topic is not searched. The topic's policy cannot be read, is not valid, is not
    enabled, or has `strict_pulsar`, or the topic has a candidate in shadow. None if the topic is to be searched.
    `in_shadow` has the ids of the topics with a candidate in shadow.
    """
    policy = subject.policy
    if isinstance(policy, UnreadablePolicy):
        return f"its policy cannot be read: {policy.why}"
    if violations(policy):
        return f"its policy is not valid: {violations(policy)[0]}"
    if not policy.enabled:
        return "its policy is not enabled"
    if policy.strict_pulsar:
        return "strict_pulsar selects Pulsar's own rules, which have nothing to tune"
    if subject.topic_id in in_shadow:
        return "it already has a candidate in shadow; promote or withdraw that candidate first"
    return None


@dataclass(frozen=True, slots=True)
class _Search:
    """The backtest runs of one tuning: it searches from `since` until `middle`, and confirms from `middle`
    until `until`. `policies` has the policy in force of each topic.
    """

    store: Store
    trials: Trials
    actor: str
    request_key: str
    policies: Mapping[str, AutoScalePolicy]
    since: datetime
    middle: datetime
    until: datetime

    def best_of(self, subjects: Sequence[Subject]) -> Iterable[TunedTopic | _SearchResult]:
        """Search the first part of the past. Yield one value for each topic, in no particular order: the best
        variant, or a result that says why there is none. The reasons are: too little of the past was recorded, a
        variant of `ALONE` has no result for the topic, or no variant costs less than the policy in force.

        While the values are read, backtests run: of the policy in force, of `ALONE`, and of each combination of
        values that helped alone. A backtest for which `trials` raises NotFound is a reason for its topics; a
        combination without a result is ignored. Raises the other errors of `trials`.
        """
        live = self._run_search((Variant(IN_FORCE),), [subject.name for subject in subjects], "in-force")
        if isinstance(live, str):
            yield from (TunedTopic(subject.name, live) for subject in subjects)
            return
        too_short = {
            subject.name: reason
            for subject in subjects
            if (reason := _reason_too_short(live, subject.name)) is not None
        }
        yield from (TunedTopic(name, reason, run_ids=(live.run_id,)) for name, reason in too_short.items())
        subjects = [subject for subject in subjects if subject.name not in too_short]
        single_parameters = (
            self._run_search(ALONE, [subject.name for subject in subjects], "alone") if subjects else ""
        )
        if isinstance(single_parameters, str):
            yield from (TunedTopic(subject.name, single_parameters) for subject in subjects)
            return
        needed = {variant.name for variant in ALONE}
        without_result = [
            subject.name for subject in subjects if needed - single_parameters.of(subject.name).keys()
        ]
        run_ids = (live.run_id, single_parameters.run_id)
        yield from (
            TunedTopic(name, single_parameters.left_out.get(name, _NO_RESULT), run_ids=run_ids)
            for name in without_result
        )
        subjects = [subject for subject in subjects if subject.name not in without_result]
        combinations = {
            subject.name: _combined_variant(single_parameters.of(subject.name)) for subject in subjects
        }
        combined = {
            variant.name: trial
            for variant, names in _grouped(combinations)
            if isinstance(trial := self._run_search((variant,), names, variant.name), BacktestAnswer)
        }
        for subject in subjects:
            variant = combinations[subject.name]
            combined_trial = combined.get(variant.name) if variant else None
            yield self._best(
                subject, (live, single_parameters, *((combined_trial,) if combined_trial else ())), variant
            )

    def confirm(self, variant: Variant, topics: Sequence[str]) -> BacktestAnswer | str:
        """Simulate the policy in force (as `IN_FORCE`) and the variant (as `CANDIDATE`) on the part of the past that
        was not searched, and return the trial for these topics. If `trials` raises NotFound, for example because no
        load was recorded, return the message of this error instead. Raises the other errors of `trials`.
        """
        variants = (Variant(IN_FORCE), replace(variant, name=CANDIDATE))
        return self._run_trial(variants, topics, self.middle, self.until, f"confirm {variant.name}")

    def _run_search(
        self, variants: Sequence[Variant], topics: Sequence[str], purpose: str
    ) -> BacktestAnswer | str:
        """Simulate the variants for these topics on the part of the past that is searched, and return the trial.
        `purpose` becomes a part of the request key. If `trials` raises NotFound, for example because no load was
        recorded, return the message of this error instead. Raises the other errors of `trials`.
        """
        return self._run_trial(variants, topics, self.since, self.middle, f"search {purpose}")

    def _run_trial(
        self,
        variants: Sequence[Variant],
        topics: Sequence[str],
        since: datetime,
        until: datetime,
        purpose: str,
    ) -> BacktestAnswer | str:
        """Simulate the variants for these topics on the load between the two instants, and return the trial. The key
        of the backtest is the request key followed by `purpose`, so a repeated request returns the stored results, in
        which topics with another policy in force are left out. If `trials` raises NotFound, for example because no
        load was recorded, return the message of this error instead. Raises the other errors of `trials`, and the
        errors of `Store.transaction`.
        """
        try:
            trial = self.trials(
                variants,
                topics,
                since,
                until,
                asked_by=self.actor,
                request_key=f"{self.request_key}/{purpose}",
            )
            return self._without_changed(trial) if trial.was_done else trial
        except NotFound as error:
            return error.message

    def _without_changed(self, trial: BacktestAnswer) -> BacktestAnswer:
        """Return the stored trial without the results of topics whose policy in force is not the policy that the
        trial compared. These topics are left out, with this reason. Raises NotFound if the run was deleted meanwhile,
        and the errors of `Store.transaction`.
        """
        inputs = self.store.in_transaction(backtests.inputs_of, trial.run_id)
        compared = {load["name"]: load["policy"] for load in inputs["loads"]}
        reason = f"the policy in force was changed since backtest {trial.run_id}; repeat the tuning under a fresh request key"
        changed = {
            name: reason
            for name, policy in compared.items()
            if name in self.policies and not _is_document_of(self.policies[name], policy)
        }
        results = tuple(result for result in trial.results if result.load not in changed)
        return replace(trial, results=results, left_out={**trial.left_out, **changed})

    @staticmethod
    def _best(
        subject: Subject, trials: Sequence[BacktestAnswer], variant: Variant | None
    ) -> TunedTopic | _SearchResult:
        """Return the variant that costs least for the topic; of equal costs, the variant whose name sorts first. If
        this variant costs at least as much as the policy in force, or sets nothing that differs from it, return a
        result with this reason instead.

        `trials` begin with the trial of the policy in force and the trial of `ALONE`, which both must have results
        for the topic. `variant` is the topic's combination of helpful values; None if the topic has no combination. A
        combination without a result is ignored.
        """
        results_by_name = {
            name: result for trial in trials for name, result in trial.of(subject.name).items()
        }
        variants_by_name = {entry.name: entry for entry in (*ALONE, *((variant,) if variant else ()))}
        name = min(
            variants_by_name.keys() & results_by_name.keys(),
            key=lambda name: (results_by_name[name].cost, name),
        )
        parameters = _changes(variants_by_name[name], subject.policy)
        search_result = _SearchResult(
            subject,
            variants_by_name[name],
            parameters,
            results_by_name,
            tuple(trial.run_id for trial in trials),
        )
        if not parameters or results_by_name[name].cost >= results_by_name[IN_FORCE].cost:
            return replace(
                search_result.answer("no variant that was tried cost less than the policy in force"),
                parameters={},
            )
        return search_result


def _reason_too_short(live: BacktestAnswer, topic: str) -> str | None:
    """Return the reason why the topic cannot be searched: `live`, the trial of the policy in force, has no result for
    the topic, or has a result for fewer than `DAYS_SEARCHED` days. None if the past is sufficient.
    """
    search_result = live.of(topic).get(IN_FORCE)
    if search_result is None:
        return live.left_out.get(topic, "no load was recorded")
    return (
        _too_little(search_result, DAYS_SEARCHED, "search")
        if measured_days(search_result) < DAYS_SEARCHED
        else None
    )


def _combined_variant(results_by_name: Mapping[str, BacktestResult]) -> Variant | None:
    """Return a variant of `adaptive` that combines the helpful values. A value is helpful if it is the value of least
    cost of its parameter (of equal costs, the smallest value) and alone costs less than `adaptive` with its defaults.
    Return None if fewer than two parameters have a helpful value. `results_by_name` must have the topic's results of
    all variants of `ALONE`, by their names.
    """
    helpful_values: dict[str, float] = {}
    for parameter, values in PARAMETERS.items():
        costs = {value: results_by_name[f"{ADAPTIVE} {parameter}={value:g}"].cost for value in values}
        value = min(costs, key=lambda candidate: (costs[candidate], candidate))
        if costs[value] < results_by_name[ADAPTIVE].cost:
            helpful_values[parameter] = value
    if len(helpful_values) < 2:
        return None
    name = " ".join([ADAPTIVE, *(f"{parameter}={value:g}" for parameter, value in helpful_values.items())])
    return Variant(name, ADAPTIVE, helpful_values)


def _grouped(variants: Mapping[str, Variant | None]) -> list[tuple[Variant, list[str]]]:
    """Return each variant with the names of its topics; variants of the same name are one. Topics without a variant are
    left out.
    """
    groups: dict[str, tuple[Variant, list[str]]] = {}
    for topic, variant in variants.items():
        if variant is not None:
            groups.setdefault(variant.name, (variant, []))[1].append(topic)
    return list(groups.values())


def _changes(variant: Variant, live: AutoScalePolicy) -> dict[str, ParameterValue]:
    """Return the parameters of the variant that differ from the policy in force."""
    parameters: dict[str, ParameterValue] = {"profile": variant.rule, **variant.parameters}
    return {parameter: value for parameter, value in parameters.items() if getattr(live, parameter) != value}


def _confirm_and_propose(
    store: Store, search: _Search, search_results: Sequence[_SearchResult]
) -> Iterable[TunedTopic]:
    """Compare the best variant of each topic with the policy in force on the rest of the past, in one stored backtest
    for each distinct set of parameters. A variant that costs less by the share `MARGIN` is proposed into shadow.
    Yield the result of each topic, with the candidate's id or with the reason why nothing was proposed. Backtests and
    proposals are made while the results are read. Raises the errors of `trials` except NotFound, and the errors of
    `Store.transaction`.
    """
    by_topic = {result.subject.name: result for result in search_results}
    for variant, topics in _grouped(
        {
            topic: Variant(_name(result.parameters), IN_FORCE, result.parameters)
            for topic, result in by_topic.items()
        }
    ):
        trial = search.confirm(variant, topics)
        for topic in topics:
            yield _evaluate_confirmation(store, search.actor, by_topic[topic], trial)


def _name(parameters: Mapping[str, Any]) -> str:
    """Return a name for a variant: its parameters with their values, sorted."""
    return " ".join(f"{parameter}={value}" for parameter, value in sorted(parameters.items()))


def _evaluate_confirmation(
    store: Store, actor: str, search_result: _SearchResult, trial: BacktestAnswer | str
) -> TunedTopic:
    """Propose the best variant of the search into shadow if `trial` confirms it: the trial has at least
    `DAYS_CONFIRMED` recorded days, and the variant costs less than the policy in force by more than the share
    `MARGIN`. Return the topic's result, with the candidate's id or with the reason why nothing was proposed. `trial`
    is the confirming backtest, or a message that says why there is no such backtest; this message then is the reason.
    Raises the errors of `Store.transaction`.
    """
    if isinstance(trial, str):
        return search_result.answer(trial)
    results = trial.of(search_result.subject.name)
    if results.keys() != {IN_FORCE, CANDIDATE}:
        return search_result.answer(trial.left_out.get(search_result.subject.name, "no load was recorded"))
    live, proposed = results[IN_FORCE], results[CANDIDATE]
    answer = replace(
        search_result.answer(""),
        confirmed={name: regret(result) for name, result in results.items()},
        run_ids=(*search_result.run_ids, trial.run_id),
    )
    if measured_days(live) < DAYS_CONFIRMED:
        return replace(answer, why=_too_little(live, DAYS_CONFIRMED, "confirm"))
    if not proposed.cost < (1 - MARGIN) * live.cost:
        return replace(
            answer,
            why=f"not confirmed: regret {regret(proposed):.3f} against {regret(live):.3f} on days that were not searched; "
            f"the candidate must cost {MARGIN:.0%} less",
        )
    return _propose(store, actor, search_result, trial.run_id, answer)


def _propose(
    store: Store, actor: str, search_result: _SearchResult, run_id: int, answer: TunedTopic
) -> TunedTopic:
    """Propose the confirmed variant into shadow, and return `answer` with the candidate's id. If a candidate with the
    same parameters was refused or withdrawn within `TURNED_DOWN`, or `propose` raises Conflict, InvalidPolicy,
    TopicNotFound or TopicNotLive, return `answer` with this reason instead. `run_id` is the confirming backtest,
    which becomes the evidence. `answer` is the topic's result without a candidate and a reason. Raises the errors of
    `Store.transaction`.
    """
    override = PolicyOverride(**search_result.parameters)
    with store.transaction() as tx:
        since = database_now(tx) - TURNED_DOWN
        turned_down = candidates.turned_down(tx, search_result.subject.topic_id, override, since)
    if turned_down is not None:
        how_ended = "refused" if turned_down.state is CandidateState.REFUSED else "withdrawn"
        return replace(
            answer,
            why=f"the same policy was {how_ended} as candidate {turned_down.candidate_id}: {turned_down.outcome}",
        )
    figures = answer.confirmed
    reason = (
        f"found by search: regret {figures[CANDIDATE]:.3f} against {figures[IN_FORCE]:.3f} of the policy in force, on days "
        "that were not searched"
    )
    try:
        candidate, _ = propose(
            store, search_result.subject.name, override, actor=actor, reason=reason, run_id=run_id
        )
    except (Conflict, InvalidPolicy, TopicNotFound, TopicNotLive) as error:
        return replace(answer, why=f"not proposed: {error.message}")
    return replace(answer, why=reason, candidate_id=candidate.candidate_id)


def _too_little(result: BacktestResult, needed: float, purpose: str) -> str:
    """Return a message that says how many days were recorded and how many are needed."""
    return f"{measured_days(result):.1f} recorded days to {purpose}, but {needed:g} are needed"


def _is_document_of(policy: AutoScalePolicy, document: Mapping[str, Any]) -> bool:
    """Return True if the stored document contains this policy. A parameter that the document lacks has its default, because
    an older version may have written the document. False for a document that cannot be read.
    """
    try:
        return AutoScalePolicy.from_document(document) == policy
    except InvalidPolicy:
        return False
