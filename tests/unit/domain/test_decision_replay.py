"""A decision made again from its text is the same, and any change of the row or of its text is found."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from controller.domain.decision import Lane
from controller.domain.decision_replay import replay
from controller.domain.evaluation_input import EvaluationInput
from controller.domain.evaluator import ALL_LANES, decide
from tests.unit.domain.situations import situations, topic

HOT = 20_000.0


@given(situations())
def test_whatever_was_decided_is_decided_again(situation: EvaluationInput) -> None:
    stored = json.loads(decide(situation, {Lane.LOAD, Lane.MERGE}).to_json())

    again = replay(situation.to_json(), {Lane.LOAD, Lane.MERGE}, stored)

    assert again.is_same
    assert again.unreadable is None


def test_other_lanes_are_another_question() -> None:
    situation = topic(HOT, 0.0)
    stored = decide(situation).to_document()

    assert replay(situation.to_json(), ALL_LANES, stored).is_same
    assert not replay(situation.to_json(), {Lane.MERGE}, stored).is_same


def test_a_figure_that_differs_in_its_last_digit_is_another_answer() -> None:
    situation = topic(HOT + 0.1, HOT)
    stored = json.loads(decide(situation).to_json())
    [refusal] = [one for one in stored["refusals"] if one["reason"] == "lower-score"]
    assert replay(situation.to_json(), ALL_LANES, stored).is_same

    refusal["needed"] += 2**-51

    assert not replay(situation.to_json(), ALL_LANES, stored).is_same


def test_an_answer_that_holds_until_another_instant_is_another_answer() -> None:
    situation = topic(HOT)
    stored = decide(situation).to_document()

    assert not replay(situation.to_json(), ALL_LANES, {**stored, "valid_until": 1}).is_same


def test_a_large_float_is_the_same_as_the_integer_that_jsonb_makes_of_it() -> None:
    """In a jsonb numbers are decimals, written with no exponent."""
    situation = topic(1e30, 1.2345678901234567e30)
    stored = decide(situation).to_document()
    [refusal] = [one for one in stored["refusals"] if one["reason"] == "lower-score"]
    assert (refusal["value"], refusal["needed"]) == (1e26, 1.2345678901234568e26)

    in_jsonb = {**refusal, "value": 10**26, "needed": 12345678901234568 * 10**10}

    assert replay(situation.to_json(), ALL_LANES, {**stored, "refusals": [in_jsonb]}).is_same


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"policy": 1}'])
def test_a_text_that_is_no_situation_is_said_to_be_unreadable(text: str) -> None:
    again = replay(text, ALL_LANES, {"decisions": [], "refusals": [], "valid_until": None})

    assert not again.is_same
    assert again.replayed is None
    assert again.unreadable


def test_a_parameter_of_a_newer_program_makes_the_text_unreadable() -> None:
    situation = topic(HOT)
    text = situation.to_json().replace('"policy":{', '"policy":{"from_the_future":1,')

    again = replay(text, ALL_LANES, decide(situation).to_document())

    assert again.unreadable is not None
    assert "from_the_future" in again.unreadable
