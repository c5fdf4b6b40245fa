"""The minute's aggregation as Airflow runs it: records are written, and the bell rings when there is work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.services import segment_admin
from controller.store import leases
from tests.integration.airflow.conftest import RunDag
from tests.support.bench import TOPIC, Bench
from tests.support.landing import land_rates

pytestmark = pytest.mark.airflow

DAG = "cleave_load_aggregation"
HOT, WARM = 25_000.0, 5_000.0


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty landing area; the engine is the one that needs no Java."""
    monkeypatch.setenv("CLEAVE_LANDING_URL", str(tmp_path / "landing"))
    monkeypatch.setenv("SPARK_MASTER", "none")
    return str(tmp_path / "landing")


def result(run: Any) -> Any:
    """What the task gave back."""
    [instance] = run.get_task_instances()
    return instance.xcom_pull(task_ids="aggregate")


def rings(run: Any) -> list[str]:
    """Assets the run gave an event."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        events = session.query(AssetEvent).filter_by(source_dag_id=DAG, source_run_id=run.run_id)
        return [event.uri for event in events]


def test_what_was_landed_becomes_load_records_and_wakes_the_split_pass(
    bench: Bench, run_dag: RunDag, landing: str, loader: str
) -> None:
    bench.topic_with(2)
    land_rates(landing, bench.topic_id, {0: HOT, 1: WARM})

    run = run_dag(DAG)

    assert (run.state, result(run)["written"], result(run)["samples"]) == ("success", 2, 4)
    assert rings(run) == ["cleave://load/"]
    rate = bench.scalar(
        "SELECT msg_rate_in FROM inspect.load_now WHERE topic = :t AND segment_id = 0", t=TOPIC
    )
    assert rate == pytest.approx(HOT, rel=0.01)

    run_dag("cleave_split_pass")
    assert len(bench.layout.active) == 3


def test_a_quiet_minute_ends_without_a_ring(bench: Bench, run_dag: RunDag, landing: str) -> None:
    bench.topic_with(1)
    bench.store.in_transaction(leases.acquire, "worker/idle", "idle", 3600.0)
    run_dag("cleave_split_pass")  # what the creation left to look at

    run = run_dag(DAG)

    assert (run.state, result(run)["applied"]) == ("success", False)
    assert rings(run) == []


def test_where_no_worker_is_up_the_bell_rings_for_an_operation_that_nobody_runs(
    bench: Bench, run_dag: RunDag, landing: str
) -> None:
    bench.topic_with(1)
    run_dag("cleave_split_pass")
    bench.intend(segment_admin.splitting(0))

    assert rings(run_dag(DAG)) == ["cleave://load/"]
    run_dag("cleave_split_pass")
    assert len(bench.layout.active) == 2


def test_a_dry_run_names_files_and_writes_nothing(bench: Bench, run_dag: RunDag, landing: str) -> None:
    bench.topic_with(1)
    land_rates(landing, bench.topic_id, {0: HOT})

    run = run_dag(DAG, dry_run=True)

    assert len(result(run)["files"]) == 2
    assert rings(run) == []
    assert bench.scalar("SELECT count(*) FROM cleave.segment_load") == 0
