"""Measures the cost of Cleave's ticks through Airflow: processor time and wall time of each scheduled DAG on a quiet fleet.

A whole Airflow on loopback runs each DAG several times, one run after the other; the aggregation finds fresh samples of every segment and
runs on a warm Spark Connect server. Processor time is that of Airflow's processes with all their children, of PostgreSQL and of Spark,
less their use while nothing runs. `cores_used` is the sum at the default cadences; the goal leaves one of two cores to other work. Prints
one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyarrow as pa
from sqlalchemy import make_url

from benchmarks.bench_operations import application
from benchmarks.fleet import WARM, analyze, insert_fleet
from benchmarks.machine import machine
from benchmarks.operation_costs import processor_seconds
from controller.clock import to_datetime
from controller.devstack.airflow import AirflowStandalone
from controller.devstack.postgres import DURABLE, EmbeddedPostgres
from controller.devstack.spark_connect import SparkConnectServer
from controller.landing.area import LandingArea
from controller.landing.schemas import SAMPLE_SCHEMA
from controller.settings import PROJECT_ROOT
from controller.store.postgres.migrations import migrate

SEGMENTS = 4
CADENCES = ("AGGREGATION", "MERGE_PASS", "SPLIT_PASS", "MAINTENANCE")
RUNS_AN_HOUR = {
    "cleave_load_aggregation": 60,
    "cleave_split_pass": 60,
    "cleave_merge_pass": 12,
    "cleave_maintenance": 4,
}
"""Runs with a load that changes every minute, which is the worst case: on a quiet fleet, fewer passes run."""


COUNTED_SINCE = time.time() - 3600
"""Time at which the counters of the samples were 0, in seconds since the Unix epoch."""


class Watch:
    """Processor time of processes since its creation, less their use while nothing runs."""

    def __init__(self, pids: list[int], idle_cores: float = 0.0) -> None:
        self._processes, self._idle_cores = [psutil.Process(pid) for pid in pids], idle_cores
        self._before, self._started = processor_seconds(*self._processes), time.perf_counter()

    @property
    def wall_seconds(self) -> float:
        """Seconds since the creation."""
        return time.perf_counter() - self._started

    @property
    def busy_seconds(self) -> float:
        """Processor seconds in addition to the idle ones."""
        return processor_seconds(*self._processes) - self._before - self._idle_cores * self.wall_seconds


def idle_cores(pids: list[int]) -> float:
    """Return the cores that the processes use while nothing runs: the lowest of three periods, because work of other causes only adds."""
    periods = []
    for _ in range(3):
        time.sleep(10.0)
        watch = Watch(pids)
        time.sleep(20.0)
        periods.append(watch.busy_seconds / watch.wall_seconds)
    return min(periods)


def measure_dag(
    airflow: AirflowStandalone,
    pids: list[int],
    dag: str,
    runs: int,
    idle_cores: float,
    prepare: Callable[[], None],
) -> dict[str, float]:
    """Run the DAG `runs` times, and return the medians of wall and processor seconds. A first run, which warms caches, is not counted.

    `prepare` is called before each run. Raises RuntimeError if a run fails.
    """
    walls, busy = [], []
    for _ in range(runs + 1):
        prepare()
        watch = Watch(pids, idle_cores)
        if airflow.api.wait_run(dag, airflow.api.trigger(dag)) != "success":
            raise RuntimeError(f"a run of {dag} failed")
        walls.append(watch.wall_seconds)
        time.sleep(1.0)  # processes of the run end after it
        busy.append(watch.busy_seconds)
    return {
        "wall_seconds": round(statistics.median(walls[1:]), 2),
        "processor_seconds": round(statistics.median(busy[1:]), 2),
    }


def land(area: LandingArea, fleet: int) -> None:
    """Write seven ticks of samples, ten seconds apart, of every segment at its recorded rate. The counters rise with the clock, so that
    the samples of runs that follow each other within a minute agree, and no topic is reshaped.
    """
    now_ms = time.time_ns() // 1_000_000
    topic = [number for number in range(1, fleet + 1) for _ in range(SEGMENTS)]
    for tick in range(7):
        instant_ms = now_ms - 61_000 + tick * 10_000
        counter = [int(WARM * (instant_ms / 1000 - COUNTED_SINCE))] * len(topic)
        columns = {
            "topic_id": topic,
            "segment_id": list(range(SEGMENTS)) * fleet,
            "backing_topic": [f"log-{number}" for number in topic],
            "source": [f"broker-{number % 10}" for number in topic],
            "reader": ["bench"] * len(topic),
            "instant": [to_datetime(instant_ms)] * len(topic),
            "msg_in": counter,
            "byte_in": [count * 100 for count in counter],
            "msg_out": counter,
            "byte_out": [count * 100 for count in counter],
        }
        arrays = {field.name: pa.array(columns[field.name], field.type) for field in SAMPLE_SCHEMA}
        area.append(instant_ms, "bench", pa.table(arrays, SAMPLE_SCHEMA))


def measure(
    server: EmbeddedPostgres, spark: SparkConnectServer, directory: Path, runs: int, fleet: int
) -> dict[str, object]:
    """Start Airflow on a fleet of warm topics, and return the figures of each scheduled DAG."""
    url = server.create_database("cleave")
    migrate(url)
    with application(url) as app, app.store.transaction() as tx:
        insert_fleet(tx, fleet, SEGMENTS)
        analyze(tx)
    seldom = dict.fromkeys((f"CLEAVE_{name}_SECONDS" for name in CADENCES), "86400")
    airflow = AirflowStandalone(
        directory / "airflow",
        dags_folder=PROJECT_ROOT / "dags",
        plugins_folder=PROJECT_ROOT / "plugins",
        metadata_url=server.create_database("airflow"),
        connections={
            "cleave": make_url(url).set(drivername="postgres").render_as_string(hide_password=False)
        },
        env={
            **seldom,
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "CLEAVE_LANDING_URL": str(directory / "landing"),
            "PYTHONPATH": str(PROJECT_ROOT),
            "SPARK_MASTER": spark.url,
        },
    )
    area = LandingArea(str(directory / "landing"))
    with airflow:
        for dag in RUNS_AN_HOUR:
            airflow.api.wait_dag(dag)
            airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": False})
        pids = [*airflow.pids.values(), server.pid, spark.pid]
        # the first runs, and what Airflow does once after its start, are not idle time
        for dag in RUNS_AN_HOUR:
            airflow.api.wait_run(dag, airflow.api.trigger(dag))
        idle = idle_cores(pids)
        dags = {
            dag: measure_dag(airflow, pids, dag, runs, idle, lambda: land(area, fleet))
            for dag in RUNS_AN_HOUR
        }
    cores = idle + sum(dags[dag]["processor_seconds"] * a_hour / 3600 for dag, a_hour in RUNS_AN_HOUR.items())
    return {
        "fleet_topics": fleet,
        "segments_each": SEGMENTS,
        "runs": runs,
        "idle_cores": round(idle, 3),
        **dags,
        "cores_used": round(cores, 3),
        "goal_cores": 1.0,
    }


def main() -> None:
    """Measure on private servers and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--fleet", type=int, default=1_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = EmbeddedPostgres(directory / "postgres", settings=DURABLE)
        stack.callback(server.destroy)
        server.start()
        spark = stack.enter_context(SparkConnectServer(directory / "spark"))
        document = measure(server, spark, directory, options.runs, options.fleet)
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"benchmark": "airflow_tick", **document, "load_average": load, "machine": machine()}))


if __name__ == "__main__":
    main()
