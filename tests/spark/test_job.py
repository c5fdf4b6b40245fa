"""The job where it really runs: on a warm Connect server, by spark-submit on a cluster of two workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from controller.devstack.java import java_home
from controller.devstack.ports import LOOPBACK, free_port, release_port
from controller.devstack.process import ChildProcess, run_checked
from controller.devstack.spark_connect import SparkConnectServer, spark_home
from controller.domain.errors import InvalidInput, Retryable
from spark_jobs.run_load_aggregation import compute
from spark_jobs.session import get_session, with_session
from tests.spark.oracle import Case, tables
from tests.spark.random_cases import WINDOW, batch, check
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkConnectServer]:
    """A Connect server of this module's own."""
    with SparkConnectServer(tmp_path_factory.mktemp("connect"), driver_memory="1g") as server:
        yield server
        get_session(server.url).stop()  # a client left over asks a dead server for half a minute at exit


def hand_over(cases: list[Case], scratch: Path) -> str:
    """Lays the baseline out as a run's scratch directory; returns the URL of the samples."""
    found = tables(cases)
    for name, table in found.items():
        (scratch / name).mkdir(parents=True)
        pq.write_table(table, scratch / name / "part-0.parquet")
    return (scratch / "samples" / "part-0.parquet").as_uri()


def run_on(master: str, cases: list[Case], scratch: Path) -> None:
    """One run on the session for the master, checked against the domain."""
    samples = hand_over(cases, scratch)
    changes, heard = with_session(
        master, lambda spark: _collected(*compute(spark, [samples], scratch.as_uri(), WINDOW))
    )
    check(cases, pq.read_table(scratch / "rates"), changes, heard)


def _collected(changes: object, heard: pa.Table) -> tuple[pa.Table, pa.Table]:
    return changes.toArrow(), heard  # type: ignore[attr-defined]  # a DataFrame of either kind of session


def test_every_run_on_a_connect_server_shares_one_session(
    connect: SparkConnectServer, tmp_path: Path
) -> None:
    run_on(connect.url, batch(1), tmp_path / "1")
    first = get_session(connect.url)

    run_on(connect.url, batch(2), tmp_path / "2")

    assert get_session(connect.url) is first


def test_a_session_that_somebody_ended_is_replaced_within_the_run(
    connect: SparkConnectServer, tmp_path: Path
) -> None:
    run_on(connect.url, batch(1), tmp_path / "1")
    ended = get_session(connect.url)
    ended.client.release_session()  # Connect's own; the server ends it, we do not know

    run_on(connect.url, batch(2), tmp_path / "2")

    assert get_session(connect.url).session_id != ended.session_id  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")
def test_a_connect_server_that_is_away_can_be_tried_again() -> None:
    port = free_port()
    with pytest.raises(Retryable, match=rf"localhost:{port} does not answer"):
        get_session(f"sc://localhost:{port}/;token=secret")
    release_port(port)


def test_a_master_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInput, match="SPARK_MASTER 'sparky'"):
        get_session("sparky")


class Cluster:
    """A standalone master and two workers on loopback."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        self.directory = directory
        self.port, self.status_port = free_port(), free_port()
        self.url = f"spark://{LOOPBACK}:{self.port}"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SPARK_")},
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(directory / "conf"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "JAVA_HOME": str(java_home(directory)),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }
        master = ["--host", LOOPBACK, "--port", str(self.port), "--webui-port", str(self.status_port)]
        self._start(running, "master", "org.apache.spark.deploy.master.Master", *master)
        for name in ("worker-1", "worker-2"):
            work = ["--host", LOOPBACK, "--cores", "1", "--memory", "512m", "--webui-port", str(free_port())]
            self._start(
                running,
                name,
                "org.apache.spark.deploy.worker.Worker",
                *work,
                "-d",
                str(directory / name),
                self.url,
            )
        wait_until(lambda: self._alive() == 2, timeout_seconds=90, message="two workers at the master")

    def _start(self, running: ExitStack, name: str, main_class: str, *arguments: str) -> None:
        child = ChildProcess(
            [spark_home() / "bin" / "spark-class", main_class, *arguments],
            log=self.directory / f"{name}.log",
            cwd=self.directory,
            env=self.environment,
        )
        child.start()
        running.callback(child.stop)

    def _alive(self) -> int:
        try:
            with urlopen(f"http://{LOOPBACK}:{self.status_port}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return 0

    def submit(self, *arguments: str) -> None:
        """spark-submit of the job, driver here, executors on the workers."""
        settings = {"spark.driver.host": LOOPBACK, "spark.executor.memory": "512m", "spark.cores.max": "2"}
        run_checked(
            [
                spark_home() / "bin" / "spark-submit",
                *("--master", self.url, "--driver-memory", "512m"),
                *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
                ROOT / "spark_jobs" / "run_load_aggregation.py",
                *("--master", self.url, *arguments),
            ],
            env=self.environment,
            cwd=self.directory,
        )

    def workers_that_ran_it(self) -> int:
        """Workers that have had an executor."""
        return sum(any((self.directory / name).glob("app-*/*/stderr")) for name in ("worker-1", "worker-2"))


def test_spark_submit_runs_the_same_job_on_two_workers(tmp_path: Path) -> None:
    cases = batch(3)
    scratch = tmp_path / "scratch"
    samples = hand_over(cases, scratch)
    with ExitStack() as running:
        cluster = Cluster(tmp_path, running)
        cluster.submit(
            "--samples", samples, "--scratch", scratch.as_uri(), "--window-end-ms", str(WINDOW.end_ms)
        )

        assert cluster.workers_that_ran_it() == 2
    check(cases, *(pq.read_table(scratch / name) for name in ("rates", "changes", "heard")))
