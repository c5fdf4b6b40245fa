"""What Cleave's ticks cost through Airflow: processor time and wall time of each scheduled DAG on a quiet fleet.

A whole Airflow on loopback runs each DAG some times, one run after the other. Processor time is that of Airflow's
processes with all their children and of PostgreSQL, less what they use when nothing runs. `cores_used` is the sum at
the default cadences; the goal leaves one of two cores to everything else. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
from sqlalchemy import make_url

from benchmarks.bench_operations import application
from benchmarks.fleet import analyze, insert_fleet
from benchmarks.machine import machine
from controller.devstack.airflow import AirflowStandalone
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.settings import PROJECT_ROOT
from controller.store.migrations import migrate

RUNS_AN_HOUR = {"cleave_split_pass": 60, "cleave_merge_pass": 12, "cleave_maintenance": 4}
"""With the bell rung every minute, which a quiet fleet does not do: the worst case."""


def processor_seconds(pids: list[int]) -> float:
    """Of the processes, their living descendants, and the dead ones that were waited for."""
    total = 0.0
    for pid in pids:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in family:
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue  # counted with its parent from now on
    return total


def measure_dag(
    airflow: AirflowStandalone, pids: list[int], dag: str, runs: int, idle: float
) -> dict[str, float]:
    """Medians over the runs; the first one, which warms caches, is left out."""
    walls, busy = [], []
    for _ in range(runs + 1):
        before, started = processor_seconds(pids), time.perf_counter()
        if airflow.api.wait_run(dag, airflow.api.trigger(dag)) != "success":
            raise RuntimeError(f"a run of {dag} failed")
        walls.append(time.perf_counter() - started)
        time.sleep(1.0)  # processes of the run end after it
        busy.append(processor_seconds(pids) - before - idle * (time.perf_counter() - started))
    return {
        "wall_seconds": round(statistics.median(walls[1:]), 2),
        "processor_seconds": round(statistics.median(busy[1:]), 2),
    }


def measure(server: EmbeddedPostgres, directory: Path, runs: int, fleet: int) -> dict[str, object]:
    """Each scheduled DAG on a fleet of warm topics."""
    url = server.create_database("cleave")
    migrate(url)
    with application(url) as app, app.store.transaction() as tx:
        insert_fleet(tx, fleet, 4)
        analyze(tx)
    airflow = AirflowStandalone(
        directory / "airflow",
        dags_folder=PROJECT_ROOT / "dags",
        plugins_folder=PROJECT_ROOT / "plugins",
        metadata_url=server.create_database("airflow"),
        connections={
            "cleave": make_url(url).set(drivername="postgres").render_as_string(hide_password=False)
        },
        env={
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "CLEAVE_MERGE_PASS_SECONDS": "86400",
            "CLEAVE_SPLIT_PASS_SECONDS": "86400",
            "CLEAVE_MAINTENANCE_SECONDS": "86400",
            "PYTHONPATH": str(PROJECT_ROOT),
        },
    )
    with airflow:
        for dag in RUNS_AN_HOUR:
            airflow.api.wait_dag(dag)
            airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": False})
        pids = [*airflow.pids.values(), server.pid]
        time.sleep(15.0)  # what Airflow does once after its start
        before, started = processor_seconds(pids), time.perf_counter()
        time.sleep(30.0)
        idle = (processor_seconds(pids) - before) / (time.perf_counter() - started)
        dags = {dag: measure_dag(airflow, pids, dag, runs, idle) for dag in RUNS_AN_HOUR}
    cores = idle + sum(dags[dag]["processor_seconds"] * a_hour / 3600 for dag, a_hour in RUNS_AN_HOUR.items())
    return {
        "fleet_topics": fleet,
        "runs": runs,
        "idle_cores": round(idle, 3),
        **dags,
        "cores_used": round(cores, 3),
        "goal_cores": 1.0,
    }


def main() -> None:
    """Measure on private servers and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fleet", type=int, default=1_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = EmbeddedPostgres(directory / "postgres", settings=DURABLE)
        stack.callback(server.destroy)
        server.start()
        found = measure(server, directory, options.runs, options.fleet)
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"benchmark": "airflow_tick", **found, "load_average": load, "machine": machine()}))


if __name__ == "__main__":
    main()
