"""What every DAG has in common: it loads without a connection, survives Airflow's serialisation, and is bounded."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from controller import tasks
from controller.domain.errors import InvalidInput, LostRace, StoreUnavailable
from controller.domain.policy import AutoScalePolicy
from controller.tasks.maintenance import BUDGET_SECONDS, SHARES_A_ROUND
from tests.integration.airflow.conftest import error_of_the_api_server
from tests.support.airflow_home import PROJECT, read_dags, serialised_and_back

pytestmark = pytest.mark.airflow

SCHEDULED = {
    "bundle_balance",
    "cleave_load_aggregation",
    "cleave_maintenance",
    "cleave_merge_pass",
    "cleave_split_pass",
    "policy_tuning",
}
BY_HAND = {
    "cleave_create_subscription",
    "cleave_create_topic",
    "cleave_delete_topic",
    "cleave_manual_merge",
    "cleave_manual_rebucket",
    "cleave_manual_split",
}
BUNDLES_BY_HAND = {"bundle_approve", "bundle_policy", "bundle_split", "bundle_unload"}
OTHERS_BY_HAND = BUNDLES_BY_HAND | {
    "cleave_approve",
    "cleave_cluster_policy",
    "cleave_policy",
    "cleave_set_subscription",
    "policy_backtest",
    "policy_promote",
    "policy_propose",
}
ASKS = {"cleave_approvals"}
EVERY = SCHEDULED | BY_HAND | OTHERS_BY_HAND | ASKS

_connects: list[Any] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _connects is not None:
        _connects.append(arguments[1])


sys.addaudithook(_audit)


@contextmanager
def connects_noted() -> Iterator[list[Any]]:
    """Every address that anything in this process connects to."""
    global _connects  # noqa: PLW0603  # an audit hook cannot be taken off again
    _connects = []
    try:
        yield _connects
    finally:
        _connects = None


def test_every_dag_imports_and_connects_to_nothing(
    airflow_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", "postgres://nobody@192.0.2.1/nowhere")
    with connects_noted() as connects:
        bag = read_dags()

    assert bag.import_errors == {}
    assert set(bag.dags) == EVERY
    assert connects == []


def test_every_file_has_one_dag_and_is_found_by_a_scan_that_looks_for_words(dag_bag: Any) -> None:
    files = sorted((PROJECT / "dags").glob("*.py"))

    assert {path.stem for path in files} == set(dag_bag.dags)
    for path in files:
        content = path.read_text().lower()
        assert ("dag" in content, "airflow" in content) == (True, True), path


@pytest.mark.parametrize("dag_id", sorted(EVERY))
def test_it_survives_serialisation(dag_bag: Any, dag_id: str) -> None:
    there_and_back = serialised_and_back(dag_bag.dags[dag_id])

    assert set(there_and_back.task_ids) == set(dag_bag.dags[dag_id].task_ids)


@pytest.mark.parametrize("dag_id", sorted(SCHEDULED))
def test_a_scheduled_dag_never_runs_beside_itself_nor_for_times_gone_by(dag_bag: Any, dag_id: str) -> None:
    dag = dag_bag.dags[dag_id]

    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.dagrun_timeout is not None


def test_a_maintenance_run_may_use_the_time_of_all_its_tasks(dag_bag: Any) -> None:
    dag = dag_bag.dags["cleave_maintenance"]
    turns = [
        SHARES_A_ROUND / dag.get_task(name).max_active_tis_per_dagrun
        for name in ("reconcile", "collect_garbage")
    ]

    assert dag.dagrun_timeout > timedelta(seconds=BUDGET_SECONDS) * (sum(turns) + 1)


def test_a_dry_run_of_balancing_bundles_is_one_for_every_task_after_the_proposals(
    dag_bag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("apply", "verify", "keep"):
        task = dag_bag.dags["bundle_balance"].get_task(name)
        function = inspect.unwrap(task.python_callable)
        monkeypatch.setattr(tasks, f"{name}_bundles", dict, raising=False)
        monkeypatch.setitem(function.__globals__, "access", dict)
        monkeypatch.setitem(function.__globals__, "run_name", lambda: "run")
        cycle = [{"cycle_id": 1}] if name == "apply" else []
        assert function(*cycle, params={"dry_run": True})["dry_run"]


def test_old_data_of_bundles_is_deleted_although_balancing_fails_and_the_run_fails_with_it(
    dag_bag: Any,
) -> None:
    dag = dag_bag.dags["bundle_balance"]

    assert dag.get_task("keep").upstream_task_ids == set()
    leaves = {task.task_id: task for task in dag.tasks if not task.downstream_task_ids}  # they judge a run
    assert leaves.keys() == {"verify", "keep"}
    balancing = leaves["verify"].get_flat_relative_ids(upstream=True)
    assert balancing == {"collect", "aggregate", "propose", "apply"}
    rules = {dag.get_task(name).trigger_rule.value for name in (*balancing, "verify")}
    assert rules == {"all_success"}


def test_what_asks_people_waits_beside_itself_and_has_no_end_but_each_question_s_own(dag_bag: Any) -> None:
    dag = dag_bag.dags["cleave_approvals"]
    starting = ("cleave_split_pass", "cleave_merge_pass", "bundle_balance")
    seconds_between = [dag_bag.dags[one].dagrun_timeout.total_seconds() / 2 for one in starting]

    assert dag.max_active_runs >= sum(
        AutoScalePolicy().approval_wait_seconds / seconds for seconds in seconds_between
    ), "each pass may start a run, which lasts as long as its questions"
    assert (dag.catchup, dag.dagrun_timeout) == (False, None)


@pytest.mark.parametrize("dag_id", sorted(BY_HAND | OTHERS_BY_HAND))
def test_a_form_runs_when_asked_even_where_dags_begin_paused(dag_bag: Any, dag_id: str) -> None:
    dag = dag_bag.dags[dag_id]

    assert dag.is_paused_upon_creation is False
    assert dag_id in OTHERS_BY_HAND or {"topic", "reason", "timeout_seconds", "dry_run"} <= set(dag.params)
    assert all(dag.params.get_param(name).description for name in dag.params)


def test_every_task_has_a_pool_and_tells_errors_apart(dag_bag: Any) -> None:
    from cleave_dags import POOL, RetryableOnly

    from cleave_provider.airflow_compatibility import HAS_RETRY_POLICIES

    for dag in dag_bag.dags.values():
        assert "cleave" in dag.tags
        assert dag.doc_md
        for task in dag.tasks:
            assert (task.task_id, task.pool) == (task.task_id, POOL)
            assert task.retries
            if HAS_RETRY_POLICIES:
                assert type(task.retry_policy).__name__ == RetryableOnly.__name__


@pytest.fixture
def in_a_run(airflow_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's function can be called as Airflow does in a run without `conf`."""
    import cleave_dags

    context = {"dag_run": SimpleNamespace(conf=None), "params": {}, "dag": None}
    monkeypatch.setattr(cleave_dags, "get_current_context", lambda: context)


def test_only_what_is_worth_it_is_tried_again_and_when_the_error_says(airflow_home: None) -> None:
    sdk = pytest.importorskip("airflow.sdk", "1.3", reason="before Airflow 3.3 there is no retry policy")
    from airflow.sdk.exceptions import AirflowTaskTimeout
    from cleave_dags import RetryableOnly

    from cleave_provider.airflow_compatibility import AirflowException

    def verdict(error: BaseException) -> tuple[Any, timedelta | None]:
        decision = RetryableOnly().evaluate(error, 1, 3)
        return decision.action, decision.retry_delay

    assert verdict(StoreUnavailable("away", 7.0)) == (sdk.RetryAction.RETRY, timedelta(seconds=7))
    assert verdict(LostRace("moved", 0.0)) == (sdk.RetryAction.RETRY, timedelta(0))
    assert verdict(AirflowException("the executor is away")) == (sdk.RetryAction.DEFAULT, None)
    assert verdict(error_of_the_api_server()) == (sdk.RetryAction.DEFAULT, None)
    assert verdict(ConnectionResetError("by peer")) == (sdk.RetryAction.DEFAULT, None)
    assert verdict(KeyError("a mistake in the code")) == (sdk.RetryAction.FAIL, None)
    assert verdict(AirflowTaskTimeout("Timeout, PID: 1")) == (sdk.RetryAction.DEFAULT, None)
    assert verdict(SystemExit("segment 3 is sealed")) == (sdk.RetryAction.FAIL, None)


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("away", 7.0), ConnectionResetError("by peer"), KeyError("a mistake in the code"), None],
    ids=["Cleave's", "the system's", "a mistake", "the API server's"],
)
def test_without_retry_policies_a_mistake_fails_its_task_from_within(
    in_a_run: None, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    import cleave_dags

    from cleave_provider import failures

    monkeypatch.setattr(failures, "HAS_RETRY_POLICIES", False)
    error = error or error_of_the_api_server()

    @cleave_dags.cleave_task()
    def go_wrong() -> None:
        raise error

    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is what is looked at
        go_wrong.function()

    if isinstance(error, KeyError):
        assert isinstance(caught.value, cleave_dags.AirflowFailException)
        assert str(caught.value) == "KeyError is not retried: 'a mistake in the code'"
        assert caught.value.__cause__ is error
    else:
        assert caught.value is error


def test_what_cannot_succeed_becomes_one_line_without_the_place_it_arose(in_a_run: None) -> None:
    from cleave_dags import HAS_RETRY_POLICIES, AirflowFailException, cleave_task

    @cleave_task()
    def refuse() -> None:
        raise InvalidInput("segment 3\n is sealed")

    ends_with = SystemExit if HAS_RETRY_POLICIES else AirflowFailException
    with pytest.raises(ends_with, match=r"^segment 3 is sealed$") as caught:
        refuse.function()

    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("seconds", "schedule"),
    [
        (15, timedelta(seconds=15)),
        (60, "*/1 * * * *"),
        (300, "*/5 * * * *"),
        (420, timedelta(minutes=7)),
        (3600, "0 * * * *"),
        (7200, timedelta(hours=2)),
    ],
)
def test_a_cadence_is_on_the_clocks_minutes_where_it_divides_the_hour(
    airflow_home: None, seconds: int, schedule: str | timedelta
) -> None:
    from cleave_dags import every

    timetable = every(seconds)

    names = ("expression", "delta", "_expression", "_delta")  # with an underscore before 3.2
    assert schedule in [getattr(timetable, name, None) for name in names]


def test_a_cadence_that_is_none_is_an_import_error_with_its_name(
    airflow_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_MERGE_PASS_SECONDS", "often")

    [error] = read_dags(PROJECT / "dags" / "cleave_merge_pass.py").import_errors.values()

    assert "CLEAVE_MERGE_PASS_SECONDS='often' must be a whole number of seconds" in error


@pytest.mark.parametrize("days", ["many", "0", "-5", "99999999999", "9" * 5_000])
def test_days_that_are_none_are_an_import_error_with_their_name(
    airflow_home: None, monkeypatch: pytest.MonkeyPatch, days: str
) -> None:
    monkeypatch.setenv("CLEAVE_LEDGER_DAYS", days)

    [error] = read_dags(PROJECT / "dags" / "cleave_maintenance.py").import_errors.values()

    assert "CLEAVE_LEDGER_DAYS='" in error
    assert "must be a whole number of days, from 1 to 36500; correct or unset the variable" in error


def test_the_pool_comes_from_the_environment(airflow_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import cleave_dags

    monkeypatch.setenv("CLEAVE_POOL", "house")
    assert importlib.reload(cleave_dags).POOL == "house"
    monkeypatch.delenv("CLEAVE_POOL")
    assert importlib.reload(cleave_dags).POOL == "default_pool"
