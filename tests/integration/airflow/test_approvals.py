"""Acts that wait for a person, by the DAGs: a pass rings where nobody was asked, a run asks about each once, a form answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from controller import tasks
from controller.domain.approval_states import ApprovalState, Subject
from controller.domain.errors import Conflict
from controller.domain.policy import PolicyOverride
from controller.services import approval_answers
from controller.store import approvals as approval_rows
from controller.store.approvals import NewApproval
from controller.store.topics import policies
from tests.integration.airflow.conftest import RunDag, error_of_the_api_server
from tests.integration.airflow.test_passes import states, xcom
from tests.support.airflow_home import read_dags
from tests.support.approvals import pending
from tests.support.bench import TOPIC, Bench
from tests.support.passes import COLD
from tests.support.reports import report_load

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

MERGE = "merge segments 0, 1 into 1"


@pytest.fixture
def marked(bench: Bench) -> Bench:
    """A topic of two cold segments, whose merges wait."""
    bench.topic_with(2)
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(approval_merges=True))
        report_load(tx, bench.topic_id, {0: COLD, 1: COLD}, cold_for=timedelta(hours=1))
    return bench


@pytest.fixture
def approval_id(marked: Bench, run_dag: RunDag) -> int:
    """The proposal that a merge pass has made; its id."""
    run_dag("cleave_merge_pass")
    [row] = pending(marked.store)
    return row.approval_id


@pytest.fixture
def rings(airflow_home: None) -> Callable[[], int]:
    """How often the bell of acts to ask about rang in this test."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    def count() -> int:
        with create_session() as session:
            found = select(func.count(AssetEvent.id)).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            return int(session.scalar(found.where(AssetModel.name == "cleave_waiting_acts")) or 0)

    before = count()
    return lambda: count() - before


def ask(dag_bag: Any) -> Any:
    """A run of `cleave_approvals` whose questions nobody answers here; this process has nobody."""
    fresh = read_dags(dag_bag.dags["cleave_approvals"].fileloc).dags["cleave_approvals"]
    fresh.get_task("questions").retry_delay = timedelta(0)
    return fresh.test(mark_success_pattern=r"act\..*")


def test_a_pass_that_proposes_rings_until_somebody_is_asked(
    marked: Bench, run_dag: RunDag, dag_bag: Any, rings: Callable[[], int]
) -> None:
    assert xcom(run_dag("cleave_merge_pass"), "drain", "summary")["unasked"] is True
    assert rings() == 1
    run_dag("cleave_split_pass")
    assert rings() == 2, "nobody was asked yet"

    run = ask(dag_bag)

    [question] = xcom(run, "questions")
    assert question["subject"] == f"{TOPIC}: {MERGE}?"
    assert (question["default"], "decision" in question["body"]) == ("reject", True)
    [row] = pending(marked.store)
    assert row.asked_in == f"cleave_approvals/{run.run_id}"
    run_dag("cleave_merge_pass")
    assert rings() == 2
    assert xcom(ask(dag_bag), "questions") == []


def test_questions_that_airflow_failed_to_store_are_asked_by_the_retry(
    approval_id: int, dag_bag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that failed has assigned the approvals to its run already."""
    from airflow.sdk.bases.xcom import BaseXCom

    stores = BaseXCom.set
    failed: list[str] = []

    def fail_once(key: str, value: Any, **options: Any) -> None:
        if not failed:
            failed.append(options["task_id"])
            raise error_of_the_api_server()
        stores(key, value, **options)

    monkeypatch.setattr(BaseXCom, "set", fail_once)

    run = ask(dag_bag)

    assert (run.state, failed) == ("success", ["questions"])
    assert [question["approval_id"] for question in xcom(run, "questions")] == [approval_id]


def test_a_rehearsed_pass_and_one_that_proposes_nothing_ring_nothing(
    bench: Bench, run_dag: RunDag, rings: Callable[[], int]
) -> None:
    bench.topic_with(1)

    run_dag("cleave_split_pass")
    run_dag("cleave_merge_pass", dry_run=True)

    assert rings() == 0


def test_the_form_answers_and_says_what_it_would_answer(
    approval_id: int, run_dag: RunDag, bench: Bench
) -> None:
    rehearsed = run_dag("cleave_approve", approvals=str(approval_id), answer="approve", dry_run=True)
    assert xcom(rehearsed, "answer")["approvals"][0]["state"] == "approved"
    assert approval_answers.find(bench.store, approval_id).state is ApprovalState.PENDING

    done = run_dag("cleave_approve", approvals=str(approval_id), answer="approve", reason="quiet week")

    [answer] = xcom(done, "answer")["approvals"]
    assert (answer["state"], answer["outcome"], answer["action"]) == ("approved", "quiet week", MERGE)
    found = approval_answers.find(bench.store, approval_id)
    assert (found.state, found.answered_by) == (ApprovalState.APPROVED, answer["answered_by"])
    assert found.answered_by not in (None, "default")


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"approvals": "none", "answer": "approve"}, "approvals.0='none'"),
        ({"approvals": "4711", "answer": "approve"}, "approval 4711 does not exist"),
    ],
)
def test_what_cannot_be_answered_fails_the_task_with_that_line(
    approval_id: int,
    run_dag: RunDag,
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    conf: dict[str, Any],
    said: str,
) -> None:
    run = run_dag("cleave_approve", **conf)

    assert states(run) == {"answer": "failed"}
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert approval_answers.find(bench.store, approval_id).state is ApprovalState.PENDING


def test_all_or_none_are_answered(approval_id: int, run_dag: RunDag, bench: Bench) -> None:
    assert states(run_dag("cleave_approve", approvals=f"{approval_id}, 4711", answer="reject")) == {
        "answer": "failed"
    }

    assert approval_answers.find(bench.store, approval_id).state is ApprovalState.PENDING


def test_an_answer_from_required_actions_counts_once_and_nobody_s_is_the_default(
    approval_id: int, bench: Bench, controller_url: str
) -> None:
    there = {"dsn": controller_url, "extras": {}}
    [question] = tasks.approval_questions(**there, run="cleave_approvals/one")
    assert question["approval_id"] == approval_id
    nobody = {"approve": True, "actor": None, "reason": ""}
    early = tasks.answer_question(**there, question=question, answer=nobody)
    assert early["state"] == "pending", "its time is not over, whatever Airflow's clock says"

    ann = {"approve": False, "actor": "ann", "reason": ""}
    answered = tasks.answer_question(**there, question=question, answer=ann)

    assert (answered["state"], answered["answered_by"]) == ("rejected", "ann")
    assert tasks.answer_question(**there, question=question, answer=ann) == answered
    assert tasks.answer_question(**there, question=question, answer=nobody) == answered


@pytest.mark.parametrize("actor", ["ann", None])
def test_a_question_of_before_a_restore_answers_no_approval_that_has_its_id_now(
    approval_id: int, bench: Bench, controller_url: str, actor: str | None
) -> None:
    there = {"dsn": controller_url, "extras": {}}
    [question] = tasks.approval_questions(**there, run="cleave_approvals/one")
    [row] = pending(bench.store)
    bench.execute("DELETE FROM cleave.approval")
    bench.execute(f"ALTER TABLE cleave.approval ALTER approval_id RESTART WITH {approval_id}")
    about = NewApproval(Subject.PROMOTION, 1, row.topic_id, "promote candidate 1", "cheaper", "tests", 60)
    bench.store.in_transaction(approval_rows.propose, [about])
    answer = {"approve": True, "actor": actor, "reason": ""}

    with pytest.raises(Conflict, match=f"approval {approval_id} is not the one of this question"):
        tasks.answer_question(**there, question=question, answer=answer)

    assert approval_answers.find(bench.store, approval_id).state is ApprovalState.PENDING
