"""A whole Airflow with this project's DAGs: scheduler, API server and task processes of its own."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from controller import tasks
from controller.devstack.airflow import AirflowStandalone
from controller.devstack.failure import DevstackFailed
from controller.devstack.process import ChildProcess
from controller.domain.operation import OperationState
from controller.services import segment_admin
from controller.store import leases
from tests.support.airflow_home import AIRFLOW, HAS_PARTITIONS, PROJECT, RETRIES_THE_KILLED, SHOWS_NO_FRAMES
from tests.support.bench import TOPIC, Bench
from tests.support.landing import land_rates
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

DAG = "cleave_manual_split"


def task_instance(airflow: AirflowStandalone, run_id: str, task_id: str = "split") -> dict[str, Any]:
    """The task instance as the REST API shows it."""
    found: dict[str, Any] = airflow.api.call("GET", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/{task_id}")
    return found


def test_a_split_asked_for_over_the_rest_api_is_done_by_a_task_of_the_scheduler(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    airflow.api.wait_dag(DAG)

    run = airflow.api.trigger(DAG, conf={"topic": TOPIC, "segment_id": bench.layout.active[0].segment_id})

    assert airflow.api.wait_run(DAG, run) == "success"
    assert [str(segment.hash_range) for segment in bench.layout.active] == ["0000-7fff", "8000-ffff"]
    path = f"/dags/{DAG}/dagRuns/{run}/taskInstances/split/xcomEntries/return_value?deserialize=true"
    assert airflow.api.call("GET", path)["value"]["state"] == "done"
    bench.check_laws()


def test_what_the_form_can_see_is_refused_by_the_api_and_the_rest_by_the_task_in_one_line(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    airflow.api.wait_dag(DAG)

    with pytest.raises(DevstackFailed, match=r"400.*segment"):
        airflow.api.trigger(DAG, conf={"topic": TOPIC, "segment_id": "the hot one"})
    run = airflow.api.trigger(DAG, conf={"topic": TOPIC, "segment_id": 99_999})

    assert airflow.api.wait_run(DAG, run) == "failed"
    assert task_instance(airflow, run)["try_number"] == 1
    log = repr(airflow.api.call("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances/split/logs/1"))
    assert "segment 99999" in log
    assert not (SHOWS_NO_FRAMES and "error_detail" in log), "frames of Airflow's own below the line"


def test_the_run_that_asked_has_in_its_note_what_was_done_below_what_people_wrote(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    airflow.api.wait_dag(DAG)
    segment_id = bench.layout.active[0].segment_id
    run = airflow.api.trigger(DAG, conf={"topic": TOPIC, "segment_id": segment_id, "dry_run": True})
    airflow.api.wait_run(DAG, run)
    airflow.api.call("PATCH", f"/dags/{DAG}/dagRuns/{run}?update_mask=note", {"note": "too hot for me"})
    asked: dict[str, Any] = {
        "dsn": bench.url,
        "extras": {"airflow_url": airflow.url, "airflow_token": airflow.api.token()},
        "params": {"topic": TOPIC, "segment_id": segment_id},
        "request_key": f"airflow/{DAG}/{run}/split/-1",
        "actor": "ann",
    }

    done = tasks.perform("segments split", **asked)
    tasks.perform("segments split", **asked)

    said = f"operation {done['operation_id']}: split of segment {segment_id} on {TOPIC} is done"
    found = airflow.api.call("GET", f"/dags/{DAG}/dagRuns/{run}")["note"]
    assert found == f"too hot for me\n\n{said}"
    asked["extras"]["airflow_url"] = "http://127.0.0.1:9"
    assert tasks.perform("segments split", **asked)["operation_id"] == done["operation_id"], (
        "a note is nobody's loss"
    )


@pytest.mark.skipif(not RETRIES_THE_KILLED, reason=f"Airflow {AIRFLOW} fails a task that was killed")
def test_a_task_killed_after_its_commit_is_retried_and_finds_its_operation(
    airflow: AirflowStandalone, bench: Bench
) -> None:
    airflow.api.wait_dag(DAG)
    with bench.store.transaction() as tx:  # somebody claims to be the worker, so the task waits for the act
        lease = leases.acquire(tx, f"worker/{secrets.token_hex(4)}", "asleep", 3600.0)
        assert lease is not None

    segment_id = bench.layout.active[0].segment_id
    run = airflow.api.trigger(DAG, conf={"topic": TOPIC, "segment_id": segment_id, "timeout_seconds": 600})
    [intended] = wait_until(bench.live_operations, message="the intent is committed")
    title = f"airflow worker -- {task_instance(airflow, run)['id']}"
    wait_until(lambda: _kill(airflow.pids["scheduler"], title), message="the task's process is found")
    bench.store.in_transaction(leases.resign, lease)

    assert airflow.api.wait_run(DAG, run) == "success"
    assert task_instance(airflow, run)["try_number"] > 1
    assert bench.operation(intended.operation_id).state is OperationState.DONE
    asked = "SELECT count(*) FROM cleave.operation WHERE request_key LIKE :run"
    assert bench.scalar(asked, run=f"airflow/{DAG}/{run}/%") == 1
    bench.check_laws()


def _kill(scheduler_pid: int, title: str) -> bool:
    """Kill the scheduler's descendant of that title without warning."""
    for process in psutil.Process(scheduler_pid).children(recursive=True):
        if title in " ".join(_cmdline(process)):
            process.kill()
            return True
    return False


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_hot_load_that_was_landed_is_split_with_nobody_asking(
    airflow: AirflowStandalone, bench: Bench, landing: str
) -> None:
    for dag in ("cleave_load_aggregation", "cleave_split_pass"):
        airflow.api.wait_dag(dag)
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": False})
    [segment] = bench.layout.active
    land_rates(landing, bench.topic_id, {segment.segment_id: 25_000.0})

    wait_until(lambda: len(bench.layout.active) == 2, timeout_seconds=120, message="the topic splits")

    def rung() -> list[dict[str, Any]]:
        runs = airflow.api.call("GET", "/dags/cleave_split_pass/dagRuns")["dag_runs"]
        return [run for run in runs if run["run_type"] == "asset_triggered"]

    assert wait_until(rung, message="a run that the bell started")
    for dag in ("cleave_load_aggregation", "cleave_split_pass"):
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": True})


def test_a_cadence_of_seconds_ticks_by_itself(airflow: AirflowStandalone, bench: Bench) -> None:
    dag = "cleave_merge_pass"
    airflow.api.wait_dag(dag)
    airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": False})

    def ended() -> bool:
        runs = airflow.api.call("GET", f"/dags/{dag}/dagRuns?run_type=scheduled")["dag_runs"]
        return [run["state"] for run in runs].count("success") >= 2

    wait_until(ended, timeout_seconds=120, message="two scheduled runs")
    airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": True})


def test_a_users_dag_runs_for_each_topic_whose_layout_a_worker_changed(
    airflow: AirflowStandalone, bench: Bench, tmp_path: Path
) -> None:
    dag = "after_a_layout_change"
    airflow.api.wait_dag(dag)
    worker = ChildProcess(
        [sys.executable, "-m", "controller.commands.cli", "worker", "--no-collect"],
        log=tmp_path / "worker.log",
        cwd=PROJECT,
        env={
            **airflow.environment(),
            "CLEAVE_DATABASE_URL": bench.url,
            "CLEAVE_AIRFLOW_URL": airflow.url,
            "CLEAVE_AIRFLOW_TOKEN": airflow.api.token(),
        },
    )
    worker.start()
    try:
        wait_until(
            lambda: bench.scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cleave-asset-events'"
            ),
            message="the worker listens",
        )
        earlier = [run["dag_run_id"] for run in airflow.api.call("GET", f"/dags/{dag}/dagRuns")["dag_runs"]]
        intended = bench.intend(segment_admin.splitting(bench.layout.active[0].segment_id))

        def runs() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = airflow.api.call("GET", f"/dags/{dag}/dagRuns")["dag_runs"]
            return [run for run in found if run["dag_run_id"] not in earlier]

        [run] = wait_until(runs, timeout_seconds=60, message="the user's DAG is run")
    finally:
        worker.stop()

    assert run["run_type"] == "asset_triggered"
    if HAS_PARTITIONS:
        assert run["partition_key"] == TOPIC
    ended = airflow.api.wait_run(dag, run["dag_run_id"], timeout_seconds=300)
    assert ended == "success", airflow.api.task_log(dag, run["dag_run_id"], "tell")
    path = f"/dags/{dag}/dagRuns/{run['dag_run_id']}/taskInstances/tell/xcomEntries/return_value?deserialize=true"
    told = airflow.api.call("GET", path)["value"]
    if HAS_PARTITIONS:
        assert told["partition_key"] == TOPIC
    [change] = told["changes"]
    assert change["topic"] == TOPIC
    assert (change["kind"], change["operation_id"]) == ("split", intended.operation.operation_id)
    assert (len(change["sealed"]), len(change["created"])) == (1, 2)
