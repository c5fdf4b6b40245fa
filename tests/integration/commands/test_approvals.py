"""`cleave approvals`: what waits is listed and answered once, and a pass of Airflow gives the default where nobody answers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller import tasks
from controller.dataplane.registry import PlaneSettings, build_planes
from controller.domain.evaluator import ALL_LANES
from controller.services import autoscaler
from controller.store.topics import inspector_reads
from tests.support.command_line import CommandLine
from tests.support.passes import COLD
from tests.support.reports import report_load


@pytest.fixture
def waiting(cleave: CommandLine, orders: str, database: str) -> int:
    """The id of a merge of the topic's two cold segments that waits for a person."""
    cleave.ok("policy", "set", f"topic://{orders}", "approval_merges=true", "approval_default=approve")
    with cleave.store.transaction() as tx:
        topic_id = inspector_reads.find_topic(tx, f"topic://{orders}").topic_id
        report_load(tx, topic_id, {0: COLD, 1: COLD}, cold_for=timedelta(hours=1))
    planes = build_planes(PlaneSettings(embedded_url=database))
    autoscaler.run_pass(cleave.store, planes, ALL_LANES, decided_by="tests", limit=10)
    [row] = cleave.json("approvals", "list")
    return int(row["approval_id"])


def test_what_waits_is_listed_and_goes_once_it_is_approved(
    cleave: CommandLine, waiting: int, orders: str, database: str
) -> None:
    assert "merge segments 0, 1 into 1" in cleave.ok("approvals", "list", "--topic", orders)
    before = cleave.rows()
    assert "would be approved" in cleave.ok("approvals", "approve", str(waiting), "--dry-run")
    assert cleave.rows() == before

    [answered] = cleave.json("approvals", "approve", str(waiting), "--reason", "quiet week")["approvals"]
    assert (answered["state"], answered["answered_by"], answered["outcome"]) == (
        "approved",
        "ada",
        "quiet week",
    )
    assert cleave.json("approvals", "list") == []
    assert "is approved" in cleave.ok("approvals", "approve", str(waiting)), "the same answer again"
    assert "was approved by ada" in cleave.refused("approvals", "reject", str(waiting))

    tasks.merge_pass(dsn=database, extras={}, decided_by="tests")
    [merge] = [one for one in cleave.json("operations") if one["kind"] == "merge"]
    [done] = cleave.json("approvals", "list", "--state", "any")
    assert (done["state"], done["operation_id"]) == ("done", merge["operation_id"])


def test_a_pass_gives_the_default_where_nobody_answered_in_time(
    cleave: CommandLine, waiting: int, database: str
) -> None:
    cleave.execute("ALTER TABLE cleave.approval DISABLE TRIGGER USER")
    cleave.execute(
        "UPDATE cleave.approval SET proposed_at = proposed_at - interval '2 days', expires_at = now() - interval '1 s'"
    )
    cleave.execute("ALTER TABLE cleave.approval ENABLE TRIGGER USER")
    tasks.merge_pass(dsn=database, extras={}, decided_by="tests", dry_run=True)
    assert [one["approval_id"] for one in cleave.json("approvals", "list")] == [waiting]

    tasks.merge_pass(dsn=database, extras={}, decided_by="tests")

    [row] = cleave.json("approvals", "list", "--state", "any")
    assert (row["state"], row["answered_by"]) == ("done", "default")


def test_what_was_rejected_stays_and_an_unknown_one_is_named(cleave: CommandLine, waiting: int) -> None:
    assert "is rejected" in cleave.ok("approvals", "reject", str(waiting))
    assert "was rejected by ada" in cleave.refused("approvals", "approve", str(waiting))
    assert "approval 999 does not exist" in cleave.refused("approvals", "approve", "999")
