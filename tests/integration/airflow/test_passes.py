"""Fleet passes and maintenance, run as Airflow runs them: the same rows as the worker's, and no more tasks than needed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from controller.domain.operation import OperationKind, OperationState
from controller.services import segment_admin, topic_admin
from controller.store import leases
from controller.store.leases import Lease
from controller.tasks import passes
from controller.tasks.maintenance import SHARES_A_ROUND, TOPICS_A_SHARE, shares_of
from tests.integration.airflow.conftest import RunDag
from tests.support.bench import TOPIC, Bench
from tests.support.reports import report_load

pytestmark = pytest.mark.airflow

HOT, WARM, COLD = 25_000.0, 5_000.0, 1.0


@pytest.fixture
def worker_lease(bench: Bench) -> Lease:
    """A worker that is up, and does nothing."""
    lease = bench.store.in_transaction(leases.acquire, "worker/idle", "idle", 3600.0)
    assert lease is not None
    return lease


def report(bench: Bench, rates: dict[int, float], cold_for: timedelta | None = None) -> None:
    """Load of `TOPIC`'s segments."""
    bench.store.in_transaction(report_load, bench.topic_id, rates, cold_for=cold_for)


def states(run: Any) -> dict[str, str]:
    """State of each task instance, mapped ones by their number."""
    return {
        one.task_id if one.map_index < 0 else f"{one.task_id}/{one.map_index}": str(one.state)
        for one in run.get_task_instances()
    }


def xcom(run: Any, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
    """What a task left."""
    [one] = [one for one in run.get_task_instances() if (one.task_id, one.map_index) == (task_id, map_index)]
    return one.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)


def consume(bench: Bench, *names: str) -> None:
    """Stream consumers of subscription billing."""
    for name in names:
        bench.execute(
            "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:id, 'billing', :name)",
            id=bench.topic_id,
            name=name,
        )


def test_the_split_pass_splits_what_is_hot_and_runs_it_where_no_worker_is_up(
    bench: Bench, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})

    run = run_dag("cleave_split_pass")

    assert states(run) == {"drain": "success", "drain_share": "skipped"}
    summary = xcom(run, "drain", "summary")
    [operation_id] = summary["operations"]
    assert bench.operation(operation_id).state is OperationState.DONE
    assert [segment.segment_id for segment in bench.layout.active] == [2, 3, 1]
    assert bench.operation(operation_id).actor == f"airflow cleave_split_pass {run.run_id}"
    assert TOPIC in capsys.readouterr().out
    json.dumps(summary)
    bench.check_laws()


def test_where_a_worker_is_up_the_pass_decides_and_leaves_the_acts_and_the_consumer_lane_to_it(
    bench: Bench, run_dag: RunDag, worker_lease: Lease
) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})

    [operation_id] = xcom(run_dag("cleave_split_pass"), "drain", "summary")["operations"]

    assert bench.operation(operation_id).state is OperationState.INTENDED
    bench.drive(operation_id)
    report(bench, {2: WARM, 3: WARM})
    consume(bench, *"abcdef")
    assert xcom(run_dag("cleave_split_pass"), "drain", "summary")["operations"] == []


def test_without_a_worker_the_split_pass_looks_after_consumers_too(bench: Bench, run_dag: RunDag) -> None:
    bench.topic_with(2)
    report(bench, {0: WARM, 1: WARM})
    consume(bench, *"abc")

    [operation_id] = xcom(run_dag("cleave_split_pass"), "drain", "summary")["operations"]

    assert bench.operation(operation_id).reason == "consumer-count"
    assert bench.operation(operation_id).state is OperationState.DONE


def test_the_merge_pass_merges_what_is_cold(bench: Bench, run_dag: RunDag) -> None:
    bench.topic_with(2)
    report(bench, {0: COLD, 1: COLD}, cold_for=timedelta(hours=1))

    run = run_dag("cleave_merge_pass")

    [operation_id] = xcom(run, "drain", "summary")["operations"]
    assert bench.operation(operation_id).kind is OperationKind.MERGE
    assert len(bench.layout.active) == 1


def test_a_pass_finishes_what_an_earlier_one_left(bench: Bench, run_dag: RunDag) -> None:
    bench.topic_with(1)
    left = bench.intend(segment_admin.splitting(0)).operation

    run_dag("cleave_merge_pass")

    assert bench.operation(left.operation_id).state is OperationState.DONE


def test_a_dry_pass_tells_and_changes_nothing(
    bench: Bench, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})

    run = run_dag("cleave_split_pass", dry_run=True)

    assert xcom(run, "drain", "summary") | {"lanes": []} == {
        "lanes": [],
        "evaluated": 1,
        "decisions": 1,
        "operations": [],
        "left_to_others": 0,
        "run_here": 0,
        "unasked": False,
    }
    assert "msgRateIn" in capsys.readouterr().out
    assert bench.live_operations() == []
    assert bench.scalar("SELECT count(*) FROM cleave.decision") == 0


def test_a_flood_is_dealt_into_a_few_shares_that_do_the_rest(
    bench: Bench, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_PASS_BATCH_TOPICS", "1")
    monkeypatch.setattr(passes, "BATCHES_ALONE", 1)
    monkeypatch.setattr(passes, "SHARES_AT_MOST", 2)
    for number in range(5):
        request = bench.request()
        name = f"topic://acme/shop/orders-{number}"
        bench.finish(topic_admin.create_topic(bench.store, bench.planes, name, request))

    run = run_dag("cleave_split_pass")

    assert xcom(run, "drain") == [{"share": 0, "of": 2}, {"share": 1, "of": 2}]
    assert states(run) == {"drain": "success", "drain_share/0": "success", "drain_share/1": "success"}
    done = [xcom(run, "drain_share", map_index=number)["evaluated"] for number in range(2)]
    assert xcom(run, "drain", "summary")["evaluated"] + sum(done) == 5
    assert xcom(run_dag("cleave_split_pass"), "drain", "summary")["evaluated"] == 0


def test_maintenance_prunes_what_is_drained_deletes_its_log_and_keeps_the_ledgers_days(
    bench: Bench, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEAVE_RETENTION_MINUTES", "0")
    bench.topic_with(1, subscriptions=())
    bench.reshape(segment_admin.splitting(0))
    log_of_parent = bench.log_of(0)

    run = run_dag("cleave_maintenance")

    assert set(states(run).values()) == {"success"}
    assert xcom(run, "collect_garbage", map_index=0)["segments"] == 1
    assert 0 not in bench.layout.segments
    assert log_of_parent not in bench.plane.list_segments(TOPIC)
    days = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'cleave.decision'::regclass"
    assert bench.scalar(days) > 7


def test_maintenance_puts_right_what_somebody_broke_and_a_dry_run_only_says_so(
    bench: Bench, run_dag: RunDag
) -> None:
    bench.topic_with(1)
    bench.plane.terminate_segment(bench.log_of(0))

    said = xcom(run_dag("cleave_maintenance", dry_run=True), "reconcile", map_index=0)
    assert [finding["kind"] for finding in said["shown"]] == ["active-terminated"]
    assert len(bench.layout.segments) == 1

    run_dag("cleave_maintenance")
    assert [segment.segment_id for segment in bench.layout.active] == [1]
    bench.check_laws()


def test_maintenance_of_an_empty_house_starts_no_share(bench: Bench, run_dag: RunDag) -> None:
    run = run_dag("cleave_maintenance")

    assert run.state == "success"
    assert states(run) == {
        "keep_partitions": "success",
        "keep_landing": "success",
        "fleet_shares": "success",
        "reconcile": "skipped",
        "collect_garbage": "skipped",
        "sweep_deletion_entries": "success",
    }


@pytest.mark.parametrize("topic_count", [1, TOPICS_A_SHARE, 7 * TOPICS_A_SHARE + 1, 24 * TOPICS_A_SHARE])
def test_rounds_go_through_the_whole_fleet(topic_count: int) -> None:
    share_count = -(-topic_count // TOPICS_A_SHARE)
    rounds = [shares_of(topic_count) for _ in range(100)]  # of 24 shares, all miss one with a chance of 6e-17

    assert {share["share"] for shares in rounds for share in shares} == set(range(share_count))
    for shares in rounds:
        assert {share["of"] for share in shares} == {share_count}
        assert len({share["share"] for share in shares}) == min(share_count, SHARES_A_ROUND)


def test_no_topics_no_shares() -> None:
    assert shares_of(0) == []


@pytest.mark.parametrize(
    ("conf", "overrides", "line"),
    [
        ({"dryrun": True}, "True", "dryrun: there is no such parameter; use one of dry_run"),
        ({"dry_run": True}, "False", "dry_run=True is ignored, because of Airflow's option"),
    ],
    ids=["a misspelt name", "an Airflow that ignores it"],
)
def test_a_run_with_a_value_that_airflow_ignores_fails_and_does_nothing(
    bench: Bench,
    run_dag: RunDag,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    conf: dict[str, Any],
    overrides: str,
    line: str,
) -> None:
    """A dry run that is none would change what it was to show."""
    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", overrides)

    run = run_dag("cleave_merge_pass", **conf)

    assert states(run)["drain"] == "failed"
    assert run.get_task_instance("drain").try_number == 1
    assert line in capsys.readouterr().out
