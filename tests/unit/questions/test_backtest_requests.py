"""Policies to try, as people write them in one text."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from controller.backtest.rivals.registry import RULES
from controller.domain.errors import InvalidInput
from controller.questions import backtest_requests
from controller.questions.backtest_requests import BacktestRequest
from controller.services.policy_backtest import Loads

LOADS = Loads(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("in-force", ["in-force"]),
        ("in-force, adaptive", ["in-force", "adaptive"]),
        (" in-force adaptive\n pip483;ydb ", ["in-force", "adaptive", "pip483", "ydb"]),
        ("pip483 strict, pip483, pravega sf 2", ["pip483 strict", "pip483", "pravega sf 2"]),
        ("adaptive:target_use=0.8,max_segments=128", ["adaptive:target_use=0.8,max_segments=128"]),
        (
            "adaptive:target_use=0.8, max_segments=128, pip483 adaptive:target_use=0.9",
            ["adaptive:target_use=0.8, max_segments=128", "pip483", "adaptive:target_use=0.9"],
        ),
        ("the best, adaptive", ["the", "best", "adaptive"]),
        ("  ", []),
    ],
)
def test_several_are_named_in_one_text(text: str, policies: list[str]) -> None:
    assert backtest_requests.policies_in(text) == policies


def test_the_policies_in_one_text_are_asked_about_and_none_means_the_usual() -> None:
    def asked(text: str) -> list[str]:
        return [one.name for one in backtest_requests.question(text).candidates]

    assert asked("in-force") == ["in-force"]
    assert asked("") == list(backtest_requests.DEFAULT_POLICIES)


def test_other_parameters_are_compared_with_the_same_options() -> None:
    request = BacktestRequest(
        LOADS,
        parameters={"max_segments": 16},
        weights="excess=20",
        seeds=3,
        actuation_seconds=5.0,
        pictures=True,
    )
    question = request.question()

    assert [candidate.name for candidate in question.candidates] == ["in force", "what if"]
    assert question.candidates[1].parameters == {"max_segments": 16}
    assert (question.prices.excess, len(question.seeds), question.pictures) == (20, 3, True)
    assert question.actuation_seconds == 5.0


@pytest.mark.parametrize(
    ("value", "written"), [("NaN", "NaN"), ("Infinity", "Infinity"), ("-Infinity", "-Infinity"), ("8.0", 8)]
)
def test_a_number_that_json_cannot_write_is_a_text_that_every_policy_reads(
    value: str, written: object
) -> None:
    [candidate] = backtest_requests.question(f"adaptive:split_msg_rate_in={value}").candidates
    number = json.loads(value)
    what_if = BacktestRequest(LOADS, parameters={"split_msg_rate_in": number}).question().candidates[1]

    assert candidate.parameters == what_if.parameters == {"split_msg_rate_in": written}


@pytest.mark.parametrize("value", ["[NaN]", "{}"])
def test_a_value_that_no_parameter_holds_is_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"'max_segments' = .*; give a number, a text, true or false"):
        backtest_requests.question([f"adaptive:max_segments={value}"])
    with pytest.raises(InvalidInput, match=r"'max_segments' = .*; give a number, a text, true or false"):
        BacktestRequest(LOADS, parameters={"max_segments": json.loads(value)}).question()


def test_the_options_of_other_parameters_are_checked() -> None:
    with pytest.raises(InvalidInput, match="seeds must be between"):
        BacktestRequest(LOADS, parameters={"max_segments": 16}, seeds=-5).question()


@pytest.mark.parametrize("separator", [", ", " ", "\n", ";"])
def test_every_rule_is_found_among_others(separator: str) -> None:
    assert backtest_requests.policies_in(separator.join(RULES)) == list(RULES)


@pytest.mark.parametrize(
    "text", ["adaptive:target_use", "in-force, adaptive:target_use pip483", "adaptive:=0.8", ":", "a:b:c=1"]
)
def test_a_text_that_is_not_all_policies_is_refused(text: str) -> None:
    """Otherwise a mistyped parameter becomes a policy of its own."""
    with pytest.raises(InvalidInput, match="write parameters as"):
        backtest_requests.question(text)
