"""Airflow's Spark connection chooses where the minute's aggregation runs: looked up by the task, and only by it."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.devstack.ports import LOOPBACK
from controller.devstack.process import run_checked
from controller.domain.errors import StoreUnavailable
from tests.integration.airflow.conftest import FailingApiServer, RunDag
from tests.support.airflow_home import PROJECT, read_dags
from tests.support.bench import Bench
from tests.support.landing import land_rates
from tests.support.spark_cluster import Cluster

pytestmark = pytest.mark.airflow

DAG = "cleave_load_aggregation"
HERE = "AIRFLOW_CONN_CLEAVE_SPARK"


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty landing area; the environment's master is one that would not serve."""
    monkeypatch.setenv("CLEAVE_LANDING_URL", str(tmp_path / "landing"))
    monkeypatch.setenv("SPARK_MASTER", "spark://nobody.invalid:7077")
    return str(tmp_path / "landing")


def engine_of(bench: Bench) -> str:
    """What the last run was computed by."""
    return str(bench.scalar("SELECT engine FROM cleave.load_run ORDER BY window_end DESC LIMIT 1"))


@pytest.mark.spark
@pytest.mark.chaos  # minutes for a cluster's start; what the connection says is tried below on its own
@pytest.mark.timeout(900)
def test_the_aggregation_runs_on_the_cluster_that_the_connection_names(
    bench: Bench, airflow_home: None, controller_url: str, landing: str, loader: str, tmp_path: Path
) -> None:
    bench.topic_with(2)
    land_rates(landing, bench.topic_id, {0: 25_000.0, 1: 5_000.0}, ago_seconds=range(60, -600, -20))
    with ExitStack() as running:
        cluster = Cluster(tmp_path, running)
        connection = {
            "conn_type": "spark",
            "host": f"spark://{LOOPBACK}",
            "port": cluster.port,
            "extra": {
                "spark.driver.host": LOOPBACK,
                "spark.executor.memory": "512m",
                "spark.cores.max": "2",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            },
        }
        environment = {
            **os.environ,
            **cluster.environment,
            "AIRFLOW_CONN_CLEAVE": controller_url,
            HERE: json.dumps(connection),
        }
        run_checked([sys.executable, "-m", "airflow", "dags", "test", DAG], env=environment, cwd=PROJECT)

        assert cluster.workers_that_ran_it() == 2
    assert engine_of(bench) == "spark"
    rate = bench.scalar("SELECT msg_rate_in FROM cleave.segment_load WHERE segment_id = 0")
    assert rate == pytest.approx(25_000.0, rel=0.01)


def test_it_outranks_the_environments_master_in_a_uri_too(
    bench: Bench, run_dag: RunDag, landing: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HERE, "spark://none")
    bench.topic_with(1)
    land_rates(landing, bench.topic_id, {0: 100.0})

    assert run_dag(DAG).state == "success"
    assert engine_of(bench) == "sql"


def test_without_one_the_environments_master_serves(
    bench: Bench, run_dag: RunDag, landing: str, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_MASTER", "none")
    bench.topic_with(1)
    land_rates(landing, bench.topic_id, {0: 100.0})

    assert run_dag(DAG).state == "success"
    assert engine_of(bench) == "sql"


@pytest.mark.parametrize(
    ("connection", "line"),
    [
        ("mesos://head:5050", "connection 'cleave_spark' of type mesos gives the master 'mesos://head:5050'"),
        (
            '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}',
            "deploy-mode cluster",
        ),
    ],
    ids=["another scheme", "a driver elsewhere"],
)
def test_a_wrong_one_fails_the_task_with_one_line(
    connection: str,
    line: str,
    bench: Bench,
    run_dag: RunDag,
    landing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(HERE, connection)

    run = run_dag(DAG)

    [instance] = run.get_task_instances()
    assert (run.state, instance.try_number) == ("failed", 1)
    assert line in capsys.readouterr().out


def test_one_that_is_named_must_be_there(
    bench: Bench,
    run_dag: RunDag,
    landing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import cleave_dags

    monkeypatch.setattr(cleave_dags, "NAMED_SPARK_CONNECTION", "house_spark")
    monkeypatch.setattr(cleave_dags, "SPARK_CONNECTION", "house_spark")

    assert run_dag(DAG).state == "failed"
    assert "there is no connection 'house_spark'" in capsys.readouterr().out


@pytest.mark.parametrize("unread", ["cleave_loader", "cleave_spark"])
def test_nothing_stands_in_for_one_that_the_api_server_could_not_read(
    failing_api_server: FailingApiServer, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    from cleave_dags import access

    monkeypatch.setenv("AIRFLOW_CONN_CLEAVE", "cleave://controller@db/cleave")
    if unread == "cleave_spark":
        monkeypatch.setenv("AIRFLOW_CONN_CLEAVE_LOADER", "cleave://loader@db/cleave")

    with pytest.raises(StoreUnavailable, match=f"^connection '{unread}'"):
        access(loader=True)

    failing_api_server.works = True
    access(loader=True)


def test_no_connection_is_looked_up_when_dags_are_parsed(
    airflow_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import BaseHook

    asked: list[str] = []
    monkeypatch.setattr(BaseHook, "get_connection", asked.append)

    bag = read_dags(PROJECT / "dags" / f"{DAG}.py")

    assert (list(bag.dags), bag.import_errors, asked) == ([DAG], {}, [])
