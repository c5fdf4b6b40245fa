"""The forms, run as Airflow runs them: the layout changes as asked, or one line says why it does not."""

from __future__ import annotations

from typing import Any

import pytest

from controller.domain.operation import OperationState, Origin
from controller.services import segment_admin
from tests.integration.airflow.conftest import RunDag
from tests.support.airflow_home import SHOWS_NO_FRAMES, TELLS_WHO_ASKED
from tests.support.bench import TOPIC, Bench

pytestmark = pytest.mark.airflow


def result(run: Any, task_id: str) -> Any:
    """What the task gave back."""
    [instance] = [one for one in run.get_task_instances() if one.task_id == task_id]
    return instance.xcom_pull(task_ids=task_id)


def ranges(bench: Bench) -> list[str]:
    """The active ranges."""
    return [str(segment.hash_range) for segment in bench.layout.active]


def test_a_topic_is_created_split_merged_rebucketed_and_deleted(bench: Bench, run_dag: RunDag) -> None:
    short = TOPIC.removeprefix("topic://")
    created = run_dag("cleave_create_topic", topic=short, segments=2, properties={"retention_minutes": "60"})
    assert (created.state, bench.topic.properties) == ("success", {"retention_minutes": "60"})

    run_dag("cleave_manual_split", topic=short, segment_id=0)
    run_dag("cleave_manual_split", topic=TOPIC, segment_id=1, cut_points="0xc000, 57344")
    assert ranges(bench) == ["0000-3fff", "4000-7fff", "8000-bfff", "c000-dfff", "e000-ffff"]

    run_dag("cleave_manual_merge", topic=TOPIC, first_id=3, second_id=2)
    run_dag("cleave_manual_split", topic=TOPIC, segment_id=4, parts=4)
    assert ranges(bench)[:5] == ["0000-7fff", "8000-8fff", "9000-9fff", "a000-afff", "b000-bfff"]

    run_dag("cleave_manual_rebucket", topic=TOPIC, segment_id=7, bucket_count=8)
    assert bench.layout.segment(12).bucket_count == 8
    bench.check_laws()

    deleted = run_dag("cleave_delete_topic", topic=TOPIC, confirm=short)
    assert (deleted.state, bench.topic.state) == ("success", "deleted")


def test_a_subscription_is_created_and_changed(bench: Bench, run_dag: RunDag) -> None:
    bench.create()

    created = run_dag("cleave_create_subscription", topic=TOPIC, subscription="billing", **{"from": "latest"})
    changed = run_dag("cleave_set_subscription", topic=TOPIC, subscription="billing", drain_consumers=3)

    assert (created.state, changed.state) == ("success", "success")
    statement = (
        "SELECT consumers, parents_block, drain_consumers FROM cleave.subscription WHERE name = 'billing'"
    )
    assert [tuple(row) for row in bench.rows(statement)] == [("cleave", True, 3)]


def test_the_result_is_the_operation_with_who_asked_and_why(bench: Bench, run_dag: RunDag) -> None:
    bench.create()

    run = run_dag("cleave_manual_split", topic=TOPIC, segment_id=0, reason="it is hot")

    document = result(run, "split")
    operation = bench.operation(document["operation_id"])
    assert (operation.origin, operation.actor, operation.reason) == (
        Origin.MANUAL,
        run.triggering_user_name if TELLS_WHO_ASKED else "airflow cleave_manual_split",
        "it is hot",
    )
    assert operation.request_key == f"airflow/cleave_manual_split/{run.run_id}/split/-1"
    assert [(one["segment_id"], one["hash_range"]) for one in document["creates"]] == [
        (1, "0000-7fff"),
        (2, "8000-ffff"),
    ]


@pytest.mark.parametrize(
    ("dag_id", "asked", "words"),
    [
        ("cleave_manual_split", {"segment_id": 0, "parts": 4}, "split would seal 0 and create"),
        ("cleave_manual_merge", {"first_id": 0, "second_id": 1}, "merge would seal 0, 1 and create"),
        ("cleave_manual_rebucket", {"segment_id": 0, "bucket_count": 8}, "rebucket would seal 0 and create"),
        ("cleave_delete_topic", {}, "would lose"),
    ],
)
def test_a_dry_run_prints_the_plan_and_changes_nothing(
    bench: Bench,
    run_dag: RunDag,
    capsys: pytest.CaptureFixture[str],
    dag_id: str,
    asked: dict[str, Any],
    words: str,
) -> None:
    bench.create(2)

    run = run_dag(dag_id, topic=TOPIC, dry_run=True, **asked)

    assert run.state == "success"
    [instance] = run.get_task_instances()
    assert result(run, instance.task_id)["dry_run"] is True
    assert words in " ".join(capsys.readouterr().out.split())
    assert bench.scalar("SELECT count(*) FROM cleave.operation") == 1, "the creation alone"


def test_a_dry_creation_needs_no_topic(bench: Bench, run_dag: RunDag) -> None:
    run = run_dag("cleave_create_topic", topic=TOPIC, segments=2, dry_run=True)

    document = result(run, "create")
    assert [segment["hash_range"] for segment in document["creates"]] == ["0000-7fff", "8000-ffff"]
    assert bench.scalar("SELECT count(*) FROM cleave.topic") == 0


@pytest.mark.parametrize(
    ("dag_id", "asked", "line"),
    [
        (
            "cleave_manual_split",
            {"segment_id": 0, "dryrun": True},
            "dryrun: there is no such parameter; use one of topic, reason, segment_id, cut_points, parts, ",
        ),
        (
            "cleave_manual_split",
            {"segment_id": 0, "cut_points": "8000h"},
            "cut_points.0='8000h': '8000h' is not a hash: write decimal (32768) or hexadecimal (0x8000)",
        ),
        (
            "cleave_manual_split",
            {"segment_id": 0, "cut_points": "9", "parts": 2},
            "split of segment 0: give cut points or a number of parts, not both",
        ),
        ("cleave_manual_split", {"segment_id": 7}, "segment 7"),
        ("cleave_manual_merge", {"first_id": 0, "second_id": 0}, "0"),
        (
            "cleave_create_subscription",
            {"subscription": "billing", "consumers": "stock"},
            "standard consumers",
        ),
        ("cleave_create_topic", {}, f"{TOPIC} exists"),
        ("cleave_create_topic", {"data_plane": "paper"}, "data plane 'paper' is not configured here"),
        (
            "cleave_delete_topic",
            {"confirm": "acme/shop/other"},
            f"confirm='acme/shop/other' is not the topic {TOPIC}; enter its name again",
        ),
    ],
)
def test_bad_input_fails_the_task_at_once_with_one_line(
    bench: Bench,
    run_dag: RunDag,
    capsys: pytest.CaptureFixture[str],
    dag_id: str,
    asked: dict[str, Any],
    line: str,
) -> None:
    bench.create()

    run = run_dag(dag_id, topic=TOPIC, **asked)

    [instance] = run.get_task_instances()
    assert (run.state, instance.state, instance.try_number) == ("failed", "failed", 1)
    lines = capsys.readouterr().out.splitlines()
    [said] = [one for one in lines if "Task exited" in one or one.startswith("airflow.sdk.exceptions")]
    assert line in said
    assert not (SHOWS_NO_FRAMES and any("Traceback" in one for one in lines))
    assert bench.scalar("SELECT count(*) FROM cleave.operation") == 1, "the creation alone"


def test_a_segment_in_an_operation_is_refused_by_name(
    bench: Bench, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.create()
    busy = bench.intend(segment_admin.splitting(0)).operation

    run = run_dag("cleave_manual_split", topic=TOPIC, segment_id=0)

    assert run.state == "failed"
    assert f"is in live operation {busy.operation_id}" in capsys.readouterr().out
    assert bench.operation(busy.operation_id).state is OperationState.INTENDED


def test_without_a_connection_the_task_says_what_to_add(
    run_dag: RunDag, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_CLEAVE")

    run = run_dag("cleave_manual_split", topic=TOPIC, segment_id=0)

    said = capsys.readouterr().out
    assert run.state == "failed"
    assert "there is no connection 'cleave'; add a Cleave or Postgres connection" in said
    assert not (SHOWS_NO_FRAMES and "Traceback" in said)


def test_a_policy_is_set_at_its_level_and_a_dry_run_says_whom_it_concerns(
    bench: Bench, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.create()
    stored = "SELECT policy FROM cleave.namespace_policy WHERE namespace = 'acme/shop'"

    tried = run_dag("cleave_policy", level="acme/shop", parameters={"max_segments": 9}, dry_run=True)
    assert (tried.state, bench.rows(stored)) == ("success", [])
    assert "acme/shop would have max_segments from unset to 9; 0 of 1 topics" in capsys.readouterr().out

    done = run_dag("cleave_policy", level="acme/shop", parameters={"max_segments": 9})
    assert (done.state, bench.scalar(stored)) == ("success", {"max_segments": 9})
    taken_back = run_dag("cleave_policy", level="acme/shop", parameters={"max_segments": None})
    assert (taken_back.state, bench.scalar(stored)) == ("success", {})


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (
            {"level": "nowhere", "parameters": {"max_segments": 4}},
            "level='nowhere': 'nowhere' is not a level of policy",
        ),
        ({"level": "acme/shop", "parameters": {"max_segments": 0}}, "max_segments"),
        ({"level": "acme/shop", "parameters": {"segments": 4}}, "segments"),
        ({"level": TOPIC, "parameters": {"max_segments": 4}}, "does not exist"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_in_one_line(
    run_dag: RunDag, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], line: str
) -> None:
    run = run_dag("cleave_policy", **asked)

    assert run.state == "failed"
    assert line in capsys.readouterr().out
