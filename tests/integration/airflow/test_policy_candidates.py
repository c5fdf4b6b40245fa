"""The DAGs `policy_tuning` and `policy_promote`, run as Airflow runs them, on a history of some days."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller import tasks
from controller.domain.policy import PolicyOverride
from controller.services import policy_candidates
from controller.store.topics import policies
from tests.integration.airflow.conftest import RunDag
from tests.support.approvals import pending
from tests.support.bench import TOPIC, Bench
from tests.support.recorded import keep_series
from tests.support.reports import milliseconds

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

DAYS = 4


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some days of a load of topic 1 that needs four segments for half of each day, and one for the other half."""
    url = tmp_path_factory.mktemp("past") / "history"
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    windows = {}
    for minute in range(0, DAYS * 1_440, 2):
        rate = 15_000.0 if minute % 1_440 < 720 else 200.0
        windows[milliseconds(now - timedelta(minutes=minute))] = {(1, 0): rate, (1, 1): rate}
    keep_series(url, windows)
    return url


@pytest.fixture
def recorded(bench: Bench, past: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The topic, whose id is 1 in a fresh database, under a policy that never gives back its four segments."""
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(past))
    monkeypatch.setenv("SPARK_MASTER", "none")
    bench.create(2)
    assert bench.topic_id == 1
    bench.store.in_transaction(
        policies.set_topic, bench.topic_id, PolicyOverride(profile="pip483", min_segments=4)
    )
    return bench


def propose(bench: Bench, **parameters: Any) -> None:
    policy_candidates.propose(bench.store, TOPIC, PolicyOverride(**parameters), actor="ada", reason="to see")


def result(run: Any, task_id: str) -> Any:
    [instance] = [one for one in run.get_task_instances() if one.task_id == task_id]
    return instance.xcom_pull(task_ids=task_id)


def states(run: Any) -> dict[str, str]:
    return {one.task_id: str(one.state) for one in run.get_task_instances()}


def stored(bench: Bench) -> Any:
    return bench.scalar("SELECT policy FROM cleave.topic WHERE topic_id = :t", t=bench.topic_id)


def test_a_candidate_that_costs_less_waits_and_is_promoted_once_it_is_approved(
    recorded: Bench, run_dag: RunDag, controller_url: str
) -> None:
    propose(recorded, min_segments=1)

    run = run_dag("policy_promote", topic=TOPIC.removeprefix("topic://"))

    assert run.state == "success", states(run)
    weighed = result(run, "promote")
    assert (weighed["state"], weighed["waits"], weighed["is_better"]) == ("shadow", True, True)
    there = {"dsn": controller_url, "extras": {}}
    [question] = tasks.approval_questions(**there, run="cleave_approvals/one")
    assert question["subject"] == f"{TOPIC}: promote candidate {weighed['candidate_id']} (min_segments=1)?"
    assert (weighed["evidence"] in question["body"], question["default"]) == (True, "reject")
    bob = {"approve": True, "actor": "bob", "reason": ""}
    answered = tasks.answer_question(**there, question=question, answer=bob)

    assert (answered["state"], answered["answered_by"]) == ("done", "bob")
    assert stored(recorded) == {"profile": "pip483", "min_segments": 1}
    [row] = recorded.rows(
        "SELECT c.state, c.ended_by, c.run_id, r.request_key FROM cleave.policy_candidate c JOIN cleave.backtest_run r USING (run_id)"
    )
    key = f"airflow/policy_promote/{run.run_id}/promote/-1"
    assert row == ("promoted", "bob", weighed["run_id"], key)


def test_a_form_puts_a_candidate_into_shadow_and_a_rehearsal_none(recorded: Bench, run_dag: RunDag) -> None:
    asked = {"topic": TOPIC, "parameters": {"max_segments": 4}, "reason": "it is enough"}
    tried = run_dag("policy_propose", **asked, dry_run=True)
    assert (result(tried, "propose")["candidate_id"], result(tried, "propose")["state"]) == (None, "shadow")
    assert recorded.rows("SELECT * FROM cleave.policy_candidate") == []

    done = result(run_dag("policy_propose", **asked), "propose")
    again = result(run_dag("policy_propose", **asked), "propose")

    assert recorded.rows("SELECT candidate_id, state, reason FROM cleave.policy_candidate") == [
        (done["candidate_id"], "shadow", "it is enough")
    ]
    assert (done["was_there"], again["was_there"]) == (False, True)
    assert again["candidate_id"] == done["candidate_id"]


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({}, "without a parameter"),
        ({"max_segments": None}, "max_segments=null"),
        ({"colour": "red"}, "colour"),
        ({"max_segments": 0}, "max_segments"),
    ],
)
def test_what_cannot_be_proposed_fails_with_one_line(
    recorded: Bench, run_dag: RunDag, capsys: pytest.CaptureFixture[str], parameters: dict[str, Any], why: str
) -> None:
    run = run_dag("policy_propose", topic=TOPIC, parameters=parameters)

    assert run.state == "failed"
    assert why in capsys.readouterr().out
    assert recorded.rows("SELECT * FROM cleave.policy_candidate") == []


def test_a_candidate_that_costs_more_is_refused_and_nobody_is_asked(
    recorded: Bench, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    propose(recorded, min_segments=2, max_segments=2)
    before = stored(recorded)

    run = run_dag("policy_promote", topic=TOPIC, days=4)

    assert states(run) == {"promote": "failed"}
    assert "is refused: regret" in capsys.readouterr().out
    assert pending(recorded.store) == []
    assert stored(recorded) == before
    assert recorded.rows("SELECT state FROM cleave.policy_candidate") == [("refused",)]


def test_a_night_without_enough_past_says_so(recorded: Bench, run_dag: RunDag) -> None:
    run = run_dag("policy_tuning", topics=TOPIC, days=5)

    assert run.state == "success"
    [topic] = result(run, "tune")["tuned"]
    assert (topic["topic"], topic["candidate_id"]) == (TOPIC, None)
    assert topic["why"] == "2.5 recorded days to search, but 3 are needed"
