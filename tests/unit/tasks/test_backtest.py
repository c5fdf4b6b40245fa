"""The task that runs a backtest: what it says of topics without results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from controller.store.backtests import BacktestAnswer
from controller.tasks import backtest


def result_of(monkeypatch: pytest.MonkeyPatch, answer: BacktestAnswer) -> Mapping[str, Any]:
    """Return the result of the task whose backtest has this answer."""
    built = Mock(run=Mock(return_value=answer))
    monkeypatch.setattr(backtest, "cleave_at", MagicMock())
    monkeypatch.setattr(backtest, "build_backtest", lambda _app: built)
    monkeypatch.setattr("controller.tasks.dag_runs.note", Mock())
    request = {"request_key": "key", "actor": "ada", "asked_at": "2026-11-30T11:05:00+00:00"}
    return backtest.policy_backtest(dsn="", extras={}, **request, params={"policies": ["adaptive"]})


def test_of_many_topics_without_results_some_are_named_and_all_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every topic was named, and Airflow's database kept the text for every run."""
    names = [f"topic://acme/shop/t{number:03}" for number in range(150)]
    left_out = dict.fromkeys(reversed(names), "no load was recorded")

    result = result_of(monkeypatch, BacktestAnswer(5, "here", (), left_out))

    assert [row["load"] for row in result["left_out"]] == names[: backtest.SHOWN_AT_MOST]
    assert result["left_out"][0]["reason"] == "no load was recorded"
    assert result["left_out_count"] == 150


def test_a_repeat_does_not_say_that_every_topic_has_results(monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of(monkeypatch, BacktestAnswer(5, "here", (), was_done=True))

    assert (result["left_out"], result["left_out_count"]) == (None, None)
