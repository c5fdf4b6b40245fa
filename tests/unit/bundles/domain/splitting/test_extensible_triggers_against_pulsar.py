"""Pulsar's own extensible load manager is asked the same cycles in a row: the same bundles, the same reasons.

The answers are on file, written by `PulsarExtensibleTriggerOracle.java` from the jars of 4.2.4. The head of that file
says how to run it. A theme is what a line is about: `plain` and `cap` agree throughout, `limit` agrees until a cycle is
full, and each of the others has one intended difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.algorithms.base import (
    CutRefusal,
    CutRefusalReason,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.policy import plan_split
from controller.bundles.domain.splitting.triggers import (
    SplitInputs,
    SplitRefusalReason,
    SplitVerdict,
    decide_splits,
)
from tests.unit.bundles.domain.splitting.extensible_cycles import THEMES, Question, questions
from tests.unit.bundles.domain.splitting.split_cycles import NOW_MS

LINES = Path(__file__).with_name("pulsar_4_2_4_extensible_triggers.txt").read_text().splitlines()[1:]
METRICS = {"Topics": "topics", "Sessions": "sessions", "MsgRate": "msg_rate", "Bandwidth": "byte_rate"}
Chosen = Mapping[NamespaceBundle, str]


def _lines(theme: str) -> Iterator[tuple[Question, list[Chosen]]]:
    for line in LINES:
        asked, answer = line.split(" => ")
        question = Question.parse(asked)
        if question.theme == theme:
            yield question, [_theirs(text.strip()) for text in answer.split("|")]


def _theirs(text: str) -> Chosen:
    found = (word.rsplit(":", 1) for word in text.strip("[]").split(", ") if word)
    return {NamespaceBundle.parse(name): METRICS[reason] for name, reason in found}


def _where(question: Question) -> Callable[[NamespaceBundle, int], SplitPlan | CutRefusal]:
    def where(bundle: NamespaceBundle, budget: int) -> SplitPlan | CutRefusal:
        points = question.cuts[bundle]
        if not points:
            return CutRefusal(str(bundle), CutRefusalReason.ONE_HASH, "hashes", 1, 2)
        options = SplitOptions(parts=points + 1, bundle_budget=budget)
        return plan_split("range_equally_divide", SplitRequest(bundle, (), options))

    return where


def _ours(question: Question) -> Iterator[SplitVerdict]:
    hits: Mapping[NamespaceBundle, int] = {}
    for reports, splitting in question.cycles:
        cycle = SplitInputs(
            NOW_MS, reports, {"t/n": question.bundle_count}, 2, hit_counts=hits, in_flight=splitting
        )
        verdict = decide_splits(cycle, _where(question), question.settings)
        hits = verdict.hit_counts
        yield verdict


def _chosen(verdict: SplitVerdict) -> Chosen:
    return {split.bundle: split.because.metric for split in verdict.chosen}


def test_the_file_answers_the_questions_that_are_asked() -> None:
    assert [line.split(" => ")[0] for line in LINES] == list(questions())
    assert Counter(line.split()[0] for line in LINES).keys() == set(THEMES)


@pytest.mark.parametrize("theme", ["plain", "cap"])
def test_the_same_bundles_for_the_same_reasons(theme: str) -> None:
    split = capped = 0
    for question, answers in _lines(theme):
        for verdict, theirs in zip(_ours(question), answers, strict=True):
            assert _chosen(verdict) == theirs
            split += len(theirs)
            capped += any(refusal.reason is SplitRefusalReason.AT_MAX_BUNDLES for refusal in verdict.refusals)
    assert split > 20
    assert (capped > 10) == (theme == "cap")


def test_a_full_cycle_has_the_same_and_counts_those_it_leaves_where_pulsar_does_not() -> None:
    full = ahead = 0
    for question, answers in _lines("limit"):
        for verdict, theirs in zip(_ours(question), answers, strict=True):
            if full and _chosen(verdict) != theirs:
                ahead += 1
                break
            assert _chosen(verdict) == theirs
            full += any(refusal.reason is SplitRefusalReason.CYCLE_LIMIT for refusal in verdict.refusals)
    assert full > 5
    assert ahead > 0


def test_one_that_is_passed_over_begins_anew_where_pulsar_keeps_its_count() -> None:
    """With fewer than two topics, or owned elsewhere: hot cycles before and after are not in a row."""
    met = 0
    for question, answers in _lines("passed-over"):
        passed: set[NamespaceBundle] = set()
        for (reports, _), verdict, theirs in zip(question.cycles, _ours(question), answers, strict=True):
            ours = _chosen(verdict)
            differ = {bundle for bundle in {*ours, *theirs} if ours.get(bundle) != theirs.get(bundle)}
            assert differ <= passed
            met += bool(differ)
            passed |= {one.bundle for one in reports if one.latest.topic_count < 2 or not one.owned}
    assert met > 0


def test_several_cuts_are_made_where_pulsar_wants_exactly_one() -> None:
    """apache/pulsar#22254."""
    met = 0
    for question, answers in _lines("cuts"):
        for verdict, theirs in zip(_ours(question), answers, strict=True):
            ours = _chosen(verdict)
            assert {bundle: why for bundle, why in ours.items() if question.cuts[bundle] == 1} == theirs
            met += any(question.cuts[bundle] == 2 for bundle in ours)
    assert met > 5


def test_a_split_under_way_holds_its_range_where_pulsar_compares_texts() -> None:
    same = inside = elsewhere = 0
    for question, answers in _lines("splitting"):
        for (_, splitting), verdict, theirs in zip(question.cycles, _ours(question), answers, strict=True):
            ours = _chosen(verdict)
            refused = {
                refusal.bundle
                for refusal in verdict.refusals
                if refusal.reason is SplitRefusalReason.IN_FLIGHT
            }
            only_theirs, only_ours = theirs.keys() - ours.keys(), ours.keys() - theirs.keys()
            same += bool(refused - theirs.keys())
            inside += bool(only_theirs)
            elsewhere += bool(only_ours)
            if only_theirs or only_ours:
                # Theirs is not the same edge, though the same hashes; ours is of another namespace.
                assert only_theirs <= refused
                assert all(_texts_alike(bundle, splitting) for bundle in only_ours)
                break  # the counts are others from here on
            assert ours == theirs
    assert min(same, inside, elsewhere) > 0


def _texts_alike(bundle: NamespaceBundle, splitting: tuple[NamespaceBundle, ...]) -> bool:
    return any(
        other.namespace != bundle.namespace and (other.lower == bundle.lower or other.upper == bundle.upper)
        for other in splitting
    )
