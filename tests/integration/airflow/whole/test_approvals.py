"""Acts that wait for a person, by clicking: asked under Airflow's Required Actions, answered there or on Cleave's pages, done by a pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from controller.devstack.airflow import AirflowStandalone
from controller.domain.approval_states import ApprovalState
from controller.domain.policy import PolicyOverride
from controller.services import approval_answers, segment_admin
from controller.store.approvals import ApprovalRow
from controller.store.topics import policies
from tests.support.airflow_home import ASKS_IN_THE_LIST, KEEPS_ITS_COOKIE
from tests.support.approvals import pending
from tests.support.bench import TOPIC, Bench
from tests.support.browser import PAGES, pages_of
from tests.support.passes import COLD, report, run
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not KEEPS_ITS_COOKIE, reason="Airflow 3.1's frames do not know who has logged in"),
]

PASS, ASKS, ANSWERS = "cleave_merge_pass", "cleave_approvals", "cleave_approve"


@pytest.fixture
def waiting(airflow: AirflowStandalone, bench: Bench) -> Iterator[ApprovalRow]:
    """A merge of two cold segments that waits for a person; the DAGs are there."""
    for dag in (PASS, ASKS, ANSWERS):
        airflow.api.wait_dag(dag)
    bench.drive(
        bench.intend(segment_admin.splitting(bench.layout.active[0].segment_id)).operation.operation_id
    )
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride(approval_merges=True))
    both = {one.segment_id: COLD for one in bench.layout.active}
    report(bench, both, cold_for=timedelta(hours=1))
    run(bench)
    [row] = pending(bench.store)
    yield row
    bench.execute(
        "TRUNCATE cleave.approval"
    )  # unanswered, it would meet the next test in the database that they share


@pytest.fixture
def passing(airflow: AirflowStandalone) -> Iterator[None]:
    """The merge pass runs, and what it rings for."""
    for dag in (PASS, ASKS):
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": False})
    yield
    for dag in (PASS, ASKS):
        airflow.api.call("PATCH", f"/dags/{dag}", {"is_paused": True})


def row_of(pages: FrameLocator, waiting: ApprovalRow) -> Locator:
    """The proposal on a page."""
    return pages.locator("#approvals tr").filter(has_text=waiting.action)


def stored(bench: Bench, waiting: ApprovalRow) -> tuple[Any, ...]:
    """How it stands, by whom, and with what words."""
    row = approval_answers.find(bench.store, waiting.approval_id)
    return row.state, row.answered_by, row.outcome


def test_a_merge_is_asked_about_and_approved_under_required_actions_and_then_done(
    front_door: str,
    bench: Bench,
    waiting: ApprovalRow,
    passing: None,
    logged_in: Callable[[str], Page],
) -> None:
    page = logged_in("bob")
    page.goto(f"{front_door}{PAGES}")
    pages = pages_of(page)
    expect(pages.locator("#topics")).to_contain_text("1 action(s) wait for an approval")
    row_of(pages, waiting).get_by_role("link", name="asked in Airflow, too").click()
    expect(page).to_have_url(re.compile(rf"/dags/{ASKS}/runs/.*/required_actions\?map_index=0"))
    question = page.get_by_text(f"{TOPIC}: {waiting.action}?")
    expect(question).to_be_visible()
    if not ASKS_IN_THE_LIST:
        question.click()
    page.locator("#element_reason").fill("quiet week")  # its label is not its own
    page.get_by_role("button", name="Approve", exact=True).click()
    answered = [(state, "bob", "quiet week") for state in (ApprovalState.APPROVED, ApprovalState.DONE)]
    wait_until(lambda: stored(bench, waiting) in answered, timeout_seconds=120, message="it is approved")

    wait_until(lambda: len(bench.layout.active) == 1, timeout_seconds=120, message="it is merged")
    assert stored(bench, waiting) == (ApprovalState.DONE, "bob", "quiet week")


def test_a_merge_is_rejected_on_the_page_of_its_topic_by_whoever_looks_at_it(
    front_door: str,
    bench: Bench,
    waiting: ApprovalRow,
    logged_in: Callable[[str], Page],
) -> None:
    page = logged_in("ann")
    page.goto(f"{front_door}{PAGES}topic?name={TOPIC}")
    pages = pages_of(page)
    row_of(pages, waiting).get_by_label("reason").fill("sale on Friday")
    row_of(pages, waiting).get_by_role("button", name="Reject", exact=True).click()
    expect(row_of(pages, waiting)).to_have_count(0)

    assert stored(bench, waiting) == (ApprovalState.REJECTED, "ann", "sale on Friday")
    assert run(bench).operation_ids == ()
