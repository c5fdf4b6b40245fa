"""The provider in a whole Airflow: its forms, the sensor without a process, and DAGs that the triggerer's watcher starts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from controller.devstack.airflow import AirflowStandalone
from controller.devstack.failure import DevstackFailed
from controller.services import segment_admin
from tests.support.airflow_home import KEEPS_STATE_OF_ASSETS
from tests.support.bench import TOPIC, Bench
from tests.support.browser import linked
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

TELLS, EACH = "example_cleave_tell_topics", "example_cleave_each_topic"
WAITS, REACTS, ACTS = "example_cleave_wait", "example_cleave_after_a_split", "example_cleave_acts"
LISTENS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cleave-layout-changes' AND state = 'idle' AND query <> ''"


def switch_on(airflow: AirflowStandalone, *dags: str) -> None:
    """Airflow learns of a DAG's watchers when it reads the DAG's file and the DAG is not paused."""
    for dag in dags:
        airflow.api.wait_dag(dag)
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": False})
        read_again(airflow, dag)


def read_again(airflow: AirflowStandalone, dag: str) -> None:
    """Have Airflow read the DAG's file now."""
    token = airflow.api.call("GET", f"/dags/{dag}")["file_token"]
    try:
        airflow.api.call("PUT", f"/parseDagFile/{token}")
    except DevstackFailed as error:
        if "answered 409" not in str(error):  # it is asked for already
            raise


@pytest.fixture
def switched_on(airflow: AirflowStandalone) -> Iterator[None]:
    """The examples run; afterwards they rest."""
    switch_on(airflow, WAITS, REACTS, ACTS)
    yield
    for dag in (WAITS, REACTS, ACTS):
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": True})


def answer(airflow: AirflowStandalone, dag: str, run: str, task: str) -> Any:
    """What the task gave back."""
    path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
    return airflow.api.call("GET", path)["value"]


def runs_by_asset(airflow: AirflowStandalone) -> list[dict[str, Any]]:
    """Runs of the DAG that a watcher started."""
    found: list[dict[str, Any]] = airflow.api.call("GET", f"/dags/{REACTS}/dagRuns")["dag_runs"]
    return [run for run in found if run["run_type"] == "asset_triggered"]


@pytest.mark.usefixtures("switched_on")
def test_the_sensor_waits_rescheduled_and_deferred_for_an_operation_that_somebody_else_runs(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    split = segment_admin.splitting(bench.layout.active[0].segment_id)
    operation_id = bench.intend(split, bench.request(deadline_seconds=900.0)).operation.operation_id
    run = airflow.api.trigger(WAITS, conf={"operation_id": operation_id})

    def state(task: str) -> str:
        return str(airflow.api.call("GET", f"/dags/{WAITS}/dagRuns/{run}/taskInstances/{task}")["state"])

    for task, waiting in (("wait", "up_for_reschedule"), ("deferred", "deferred")):
        wait_until(lambda: state(task) == waiting, timeout_seconds=120, message=f"{task} is {waiting}")  # noqa: B023
    bench.drive(operation_id)

    assert airflow.api.wait_run(WAITS, run, timeout_seconds=300) == "success"
    assert answer(airflow, WAITS, run, "deferred") == answer(airflow, WAITS, run, "wait")
    assert answer(airflow, WAITS, run, "deferred")["operation_id"] == operation_id
    assert answer(airflow, WAITS, run, "describe_operation").startswith(f"split of {TOPIC} made segments [")
    links = airflow.api.call("GET", f"/dags/{WAITS}/dagRuns/{run}/taskInstances/deferred/links")
    [address] = links["extra_links"].values()
    assert address.endswith(linked(f"operation?operation_id={operation_id}"))


@pytest.mark.usefixtures("switched_on")
def test_a_split_by_an_operator_starts_the_dag_that_watches_for_splits(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    wait_until(lambda: bench.scalar(LISTENS), timeout_seconds=120, message="the triggerer listens")
    [segment] = bench.layout.active
    before = {run["dag_run_id"] for run in runs_by_asset(airflow)}

    acts = airflow.api.trigger(ACTS, conf={"topic": TOPIC, "segment_id": segment.segment_id})
    assert airflow.api.wait_run(ACTS, acts, timeout_seconds=300) == "success"

    def told() -> list[str]:
        new = [run["dag_run_id"] for run in runs_by_asset(airflow) if run["dag_run_id"] not in before]
        return [
            line
            for run in new
            if airflow.api.wait_run(REACTS, run)
            for line in answer(airflow, REACTS, run, "describe_splits")
        ]

    children = answer(airflow, ACTS, acts, "split")["children"]
    line = f"{TOPIC}: [{segment.segment_id}] became {children}, a busy day"
    assert line in wait_until(told, timeout_seconds=120, message="the watching DAG ran")
    assert len(bench.layout.active) == 1, "merged again at the end of the day"


@pytest.mark.skipif(not KEEPS_STATE_OF_ASSETS, reason="before Airflow 3.3 what is missed stays missed")
@pytest.mark.usefixtures("switched_on")
def test_splits_while_the_watching_dag_is_paused_start_it_when_it_is_not(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    """The triggerer listens until Airflow has read the file of the paused DAG; what it hears so long is told with the next event.
    Where Airflow has just read it, the first split is missed as the second is.
    """
    wait_until(lambda: bench.scalar(LISTENS), timeout_seconds=120, message="the triggerer listens")
    airflow.api.call("PATCH", f"/dags/{REACTS}", {"is_paused": True})
    heard = bench.reshape(segment_admin.splitting(bench.layout.active[0].segment_id))

    def recorded() -> bool:
        events = airflow.api.call("GET", "/assets/events?order_by=-timestamp&limit=50")["asset_events"]
        changes = [one for event in events for one in event["extra"].get("payload", {}).get("changes", ())]
        return any(one["sealed"] == list(heard.parent_ids) and one["topic"] == TOPIC for one in changes)

    def was_heard_or_cannot_be() -> bool:
        return recorded() or bench.scalar(LISTENS) == 0

    wait_until(was_heard_or_cannot_be, timeout_seconds=120, message="the triggerer heard the first")
    read_again(airflow, REACTS)
    wait_until(lambda: bench.scalar(LISTENS) == 0, timeout_seconds=120, message="nobody listens any more")
    missed = bench.reshape(segment_admin.splitting(bench.layout.active[0].segment_id))

    switch_on(airflow, REACTS)

    for split in (heard, missed):
        wait_until(
            lambda: line_of(airflow, split.parent_ids),  # noqa: B023
            timeout_seconds=240,
            message=f"the split of {split.parent_ids} is told",
        )


@pytest.mark.skipif(not KEEPS_STATE_OF_ASSETS, reason="before Airflow 3.3 a task cannot name partitions")
@pytest.mark.usefixtures("switched_on")
def test_what_the_triggerer_heard_becomes_one_run_for_each_topic(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    switch_on(airflow, EACH, TELLS)
    try:
        wait_until(lambda: bench.scalar(LISTENS) == 2, timeout_seconds=120, message="both watchers listen")
        split = bench.reshape(segment_admin.splitting(bench.layout.active[0].segment_id))

        def told() -> list[Any]:
            runs = airflow.api.call("GET", f"/dags/{EACH}/dagRuns")["dag_runs"]
            ended = [one for one in runs if one["partition_key"] == TOPIC and one["state"] == "success"]
            return [
                line for one in ended for line in answer(airflow, EACH, one["dag_run_id"], "describe_changes")
            ]

        line = f"split of {list(split.parent_ids)} into {[one.plan.segment_id for one in split.children]}"
        wait_until(lambda: line in told(), timeout_seconds=120, message="the topic's run")
    finally:
        for dag in (TELLS, EACH):
            airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": True})


@pytest.mark.chaos  # a triggerer counts as alive for half a minute after it was killed
@pytest.mark.skipif(not KEEPS_STATE_OF_ASSETS, reason="before Airflow 3.3 what is missed stays missed")
@pytest.mark.usefixtures("switched_on")
def test_a_split_while_no_triggerer_is_up_starts_the_watching_dag_when_one_is(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    wait_until(lambda: bench.scalar(LISTENS), timeout_seconds=120, message="the triggerer listens")
    first = bench.reshape(segment_admin.splitting(bench.layout.active[0].segment_id))
    wait_until(lambda: line_of(airflow, first.parent_ids), timeout_seconds=120, message="the first is told")
    os.kill(airflow.pids["triggerer"], signal.SIGKILL)
    wait_until(lambda: bench.scalar(LISTENS) == 0, timeout_seconds=60, message="nobody listens")

    missed = bench.reshape(segment_admin.splitting(bench.layout.active[0].segment_id))
    wait_until(lambda: "triggerer" in airflow.revive(), message="the triggerer is found dead")

    wait_until(
        lambda: line_of(airflow, missed.parent_ids), timeout_seconds=240, message="the missed one is told"
    )


def line_of(airflow: AirflowStandalone, sealed: tuple[int, ...]) -> str | None:
    """What a run of the watching DAG said of the split of those segments, if any did."""
    ended = [run["dag_run_id"] for run in runs_by_asset(airflow) if run["state"] == "success"]
    lines = [line for run in ended for line in answer(airflow, REACTS, run, "describe_splits")]
    return next((line for line in lines if f": {list(sealed)} became" in line), None)
