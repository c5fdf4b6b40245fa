"""The DAG `policy_backtest`, run as Airflow runs it: on the history that is kept, in this process and on Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.landing.history import RateHistory
from tests.integration.airflow.conftest import RunDag
from tests.support.bench import TOPIC, Bench
from tests.support.recorded import keep_rates
from tests.support.reports import milliseconds
from tests.support.spark_session import MASTER

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

SINCE = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(hours=1)
SPAN = {"from": SINCE.isoformat(), "to": (SINCE + timedelta(hours=1)).isoformat()}


@pytest.fixture
def recorded(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A topic with an hour of load, which becomes hot."""
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(tmp_path / "history"))
    monkeypatch.setenv("SPARK_MASTER", "none")
    bench.create(2)
    history = RateHistory(str(tmp_path / "history"))
    for minute in range(1, 61):
        rate = 300.0 * minute
        window = {(bench.topic_id, 0): rate, (bench.topic_id, 1): rate / 2}
        keep_rates(history, milliseconds(SINCE) + minute * 60_000, window)
    return bench


def result(run: Any) -> Any:
    [instance] = run.get_task_instances()
    return instance.xcom_pull(task_ids="simulate")


def test_the_answer_is_one_row_a_policy_and_is_kept(recorded: Bench, run_dag: RunDag) -> None:
    short = TOPIC.removeprefix("topic://")

    run = run_dag("policy_backtest", topics=f" {short}\n", policies=["pip483", "adaptive"], **SPAN)

    assert run.state == "success"
    answer = result(run)
    regrets = [row["regret"] for row in answer["summary"]]
    assert {row["policy"] for row in answer["summary"]} == {"pip483", "adaptive"}
    assert regrets == sorted(regrets)
    assert min(regrets) >= 1
    [kept] = recorded.rows("SELECT state, results, engine, loads FROM inspect.backtest_runs")
    assert kept == ("done", 2, "here", [TOPIC])
    [(key,)] = recorded.rows("SELECT request_key FROM cleave.backtest_run")
    assert key == f"airflow/policy_backtest/{run.run_id}/simulate/-1"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_on_spark_the_figures_are_the_same(
    recorded: Bench, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_MASTER", MASTER)
    asked = {"namespace": "acme/shop", "policies": ["pip483"], **SPAN}

    there = result(run_dag("policy_backtest", engine="spark", **asked))
    here = result(run_dag("policy_backtest", engine="here", **asked))

    assert (there["engine"], here["engine"]) == ("spark", "here")
    assert there["summary"] == here["summary"]


@pytest.mark.parametrize(
    "asked",
    [
        {"topics": "acme/shop/none"},
        {"topics": TOPIC, "namespace": "acme/shop"},
        {"policies": ["nonsense"]},
        {"from": "soon"},
        {"weights": "x"},
    ],
)
def test_what_cannot_be_asked_fails_the_run(recorded: Bench, run_dag: RunDag, asked: dict[str, Any]) -> None:
    assert run_dag("policy_backtest", **{**SPAN, **asked}).state == "failed"
    assert recorded.rows("SELECT count(*) FROM inspect.backtest_results") == [(0,)]
