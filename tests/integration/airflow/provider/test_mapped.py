"""Operators and the sensor mapped with `partial().expand()`: each task its own request, with attempts as any other."""

from __future__ import annotations

from typing import Any

import pytest

from controller.services import segment_admin
from tests.integration.airflow.provider.conftest import RunMapped
from tests.support.airflow_home import SHOWS_NO_FRAMES, serialised_and_back
from tests.support.bench import TOPIC, Bench
from tests.support.browser import linked

pytestmark = pytest.mark.airflow
OPERATORS = {
    "SplitSegmentOperator": ({"topic": TOPIC}, {"segment_id": [0, 1]}),
    "MergeSegmentsOperator": ({"topic": TOPIC, "first_id": 0}, {"second_id": [1, 2]}),
    "SetAutoScalePolicyOperator": ({"parameters": {}}, {"level": ["cluster", "acme/shop"]}),
    "BacktestOperator": ({}, {"namespace": ["acme/shop", "acme/till"]}),
    "AskOperator": ({}, {"question": [{"subject": "a merge"}, {"subject": "a split"}]}),
    "WaitForOperationSensor": ({}, {"operation_id": [1, 2]}),
}


def mapped(name: str, *, dag: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    """The operator or sensor of that name, mapped in a DAG with those default arguments: as it was made, and as the scheduler gets it."""
    from airflow.sdk import DAG

    from cleave_provider.operators import ask
    from cleave_provider.operators import cleave as operators
    from cleave_provider.sensors import cleave as sensors

    fixed, expanded = OPERATORS[name]
    [made] = [getattr(module, name) for module in (ask, operators, sensors) if name in vars(module)]
    with DAG("peoples_own", schedule=None, default_args=dag or {}) as peoples_own:
        task = made.partial(task_id="act", **{**fixed, **options}).expand(**expanded)
    return task, serialised_and_back(peoples_own).get_task("act")


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_its_attempts_when_it_is_mapped(airflow_home: None, name: str) -> None:
    from cleave_provider.airflow_compatibility import HAS_RETRY_POLICIES
    from cleave_provider.failures import RETRY_DELAY, RetryableOnly

    made, stored = mapped(name)

    for task in (made, stored):
        assert (task.retries, task.retry_delay) == (3, RETRY_DELAY)
    if HAS_RETRY_POLICIES:
        assert isinstance(made.retry_policy, RetryableOnly)
        assert stored.has_retry_policy


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_asked_for_counts_when_it_is_mapped(airflow_home: None, name: str) -> None:
    def retries(**options: Any) -> set[int]:
        return {task.retries for task in mapped(name, **options)}

    assert retries(retries=7) == {7}
    assert retries(retries=0) == {0}
    assert retries(default_args={"retries": 6}) == {6}
    assert retries(dag={"retries": 5}) == {5}
    assert retries(dag={"retries": 5}, retries=1) == {1}


def test_the_defaults_of_a_group_of_tasks_count_when_it_is_mapped(airflow_home: None) -> None:
    from airflow.sdk import DAG, TaskGroup

    from cleave_provider.operators.cleave import SplitSegmentOperator

    with DAG("peoples_own", schedule=None), TaskGroup("patient", default_args={"retries": 9}):
        task = SplitSegmentOperator.partial(task_id="act", topic=TOPIC).expand(segment_id=[0, 1])

    assert task.retries == 9


def test_a_mapped_sensor_that_is_deferred_is_tried_again_whatever_is_asked(airflow_home: None) -> None:
    """Or the scheduler, which reads the partial's, fails what Airflow's race has marked."""

    def retries(**options: Any) -> set[int]:
        return {task.retries for task in mapped("WaitForOperationSensor", **options)}

    assert retries(deferrable=True) == {3}
    assert retries(deferrable=True, retries=0) == {2}
    assert retries(deferrable=True, dag={"retries": 1}) == {2}
    assert retries(retries=0, dag={"deferrable": True}) == {2}
    assert retries(retries=0, dag={"deferrable": True}, deferrable=False) == {0}
    assert retries(deferrable=True, retries=7) == {7}


def test_each_of_the_mapped_is_done_under_a_key_and_a_link_of_its_own(
    bench: Bench, run_mapped: RunMapped
) -> None:
    bench.create(2)

    done = run_mapped(
        f"SplitSegmentOperator.partial(task_id='act', topic={TOPIC!r}).expand(segment_id=[0, 1])"
    )

    assert [(one.map_index, one.state, one.try_number) for one in done] == [
        (0, "success", 1),
        (1, "success", 1),
    ]
    asked = bench.rows(
        "SELECT request_key, operation_id FROM cleave.operation WHERE kind = 'split' ORDER BY request_key"
    )
    assert [key for key, _ in asked] == [
        f"airflow/peoples_own/{one.run_id}/act/{one.map_index}" for one in done
    ]
    for one, (_, operation_id) in zip(done, asked, strict=True):
        link = one.xcom_pull(task_ids="act", map_indexes=one.map_index, key="_link_OperationLink")
        assert link.endswith(linked(f"operation?operation_id={operation_id}"))
    bench.check_laws()


def test_one_that_cannot_be_done_fails_at_once_with_one_line_and_the_others_are_done(
    bench: Bench, run_mapped: RunMapped, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.create(2)

    ended = run_mapped(
        f"SplitSegmentOperator.partial(task_id='act', topic={TOPIC!r}).expand(segment_id=[77, 1])"
    )

    assert [(one.state, one.try_number) for one in ended] == [("failed", 1), ("success", 1)]
    said = capsys.readouterr().out
    assert "segment 77" in said
    assert not (SHOWS_NO_FRAMES and "Traceback" in said)
    link = ended[0].xcom_pull(task_ids="act", map_indexes=0, key="_link_OperationLink")
    assert linked("run?dag_id=peoples_own&run_id=manual") in link


def test_one_whose_database_is_away_is_tried_again(
    bench: Bench, connection: str, run_mapped: RunMapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleave_provider.hooks.cleave import CleaveHook

    bench.create(2)
    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", "postgres://nobody@127.0.0.1:9/none")
    looks = CleaveHook.access

    def put_right(hook: CleaveHook) -> Any:
        found = looks(hook)
        monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", connection)
        return found

    monkeypatch.setattr(CleaveHook, "access", put_right)

    done = run_mapped(
        f"SplitSegmentOperator.partial(task_id='act', topic={TOPIC!r}, retry_delay=0.1).expand(segment_id=[0, 1])"
    )

    assert [one.state for one in done] == ["success", "success"]
    assert sorted(one.try_number for one in done) == [1, 2]
    assert len(bench.layout.active) == 4


@pytest.mark.parametrize("deferrable", [False, True], ids=["rescheduled", "deferred"])
def test_a_mapped_sensor_ends_as_each_of_its_operations_does(
    bench: Bench, run_mapped: RunMapped, capsys: pytest.CaptureFixture[str], deferrable: bool
) -> None:
    bench.create(2)
    ends = bench.intend(segment_admin.splitting(0), bench.request()).operation.operation_id
    bench.drive(ends)
    aborted = bench.intend(
        segment_admin.splitting(1), bench.request(deadline_seconds=0.0)
    ).operation.operation_id
    bench.drive(aborted)

    ended = run_mapped(
        f"WaitForOperationSensor.partial(task_id='wait', deferrable={deferrable}).expand(operation_id={[ends, aborted]})"
    )

    assert [(one.state, one.try_number) for one in ended] == [("success", 1), ("failed", 1)]
    assert ended[0].xcom_pull(task_ids="wait", map_indexes=0)["operation_id"] == ends
    assert f"operation {aborted} (split of {bench.topic_name}) was aborted" in capsys.readouterr().out
    for one, operation_id in zip(ended, (ends, aborted), strict=True):
        link = one.xcom_pull(task_ids="wait", map_indexes=one.map_index, key="_link_OperationLink")
        assert link.endswith(linked(f"operation?operation_id={operation_id}"))


def test_a_sensor_mapped_over_its_way_is_not_deferred_without_retries(
    bench: Bench, run_mapped: RunMapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is mapped over is known to nobody before it runs; its retries are the partial's."""
    from cleave_provider.triggers.cleave import OperationTrigger

    bench.create()
    operation_id = bench.intend(segment_admin.splitting(0), bench.request()).operation.operation_id
    bench.drive(operation_id)
    asked: list[int] = []
    looks = OperationTrigger._look
    monkeypatch.setattr(OperationTrigger, "_look", lambda *given: [asked.append(1), looks(*given)][1])

    for retries in (1, 2):
        [ended] = run_mapped(
            f"WaitForOperationSensor.partial(task_id='wait', operation_id={operation_id}, retries={retries})"
            ".expand(deferrable=[True])"
        )
        assert (ended.state, len(asked)) == ("success", retries - 1)
