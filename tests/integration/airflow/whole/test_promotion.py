"""A candidate is weighed, approved and promoted by clicking: Cleave's pages, Airflow's approval, the policy in PostgreSQL."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from controller.devstack.airflow import AirflowStandalone
from controller.domain.policy import PolicyOverride
from controller.services import policy_candidates
from controller.store.topics import policies
from tests.support.bench import TOPIC, Bench
from tests.support.browser import PAGES, pages_of
from tests.support.recorded import keep_series
from tests.support.reports import milliseconds
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]

DAG, ANSWERS = "policy_promote", "cleave_approve"
DAYS = 4
IN_FORCE = {"profile": "pip483", "min_segments": 4}
FIGURES = r"regret \d\.\d{3} against \d\.\d{3} of the policy in force, on 4\.0 recorded days \(backtest \d+\)"


@pytest.fixture
def proposed(airflow: AirflowStandalone, bench: Bench, history: Path) -> Bench:
    """A topic whose policy never gives back its four segments; the DAG is there, and no past yet."""
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride.from_document(IN_FORCE))
    for dag in (DAG, ANSWERS):
        airflow.api.wait_dag(dag)
    return bench


@pytest.fixture
def history(landing: str) -> Iterator[Path]:
    """Where the recorded past lies: Airflow and its folders are shared by tests, topics have the same numbers in each."""
    directory = Path(f"{landing}-history")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def record(bench: Bench, history: Path) -> None:
    """Some days of a load that needs four segments for half of each day, and one for the other half."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    windows = {}
    for minute in range(0, DAYS * 1_440, 2):
        rate = 15_000.0 if minute % 1_440 < 720 else 200.0
        rates = {(bench.topic_id, 0): rate, (bench.topic_id, 1): rate}
        windows[milliseconds(now - timedelta(minutes=minute))] = rates
    keep_series(history, windows)


def propose(bench: Bench, **parameters: Any) -> None:
    """By somebody who does not promote it."""
    policy_candidates.propose(
        bench.store, TOPIC, PolicyOverride(**parameters), actor="ada", reason="fewer at night"
    )


def candidate(pages: FrameLocator) -> Locator:
    """The row of the newest candidate."""
    return pages.locator("#candidates tr").nth(1)


def ask(url: str, page: Page) -> FrameLocator:
    """Weigh the candidate: the page of backtests, and its button."""
    page.goto(f"{url}{PAGES}backtests")
    pages = pages_of(page)
    candidate(pages).get_by_role("button", name="Weigh and promote").click()
    expect(candidate(pages)).to_contain_text("asked for in the run manual__")
    return pages


def in_force(bench: Bench) -> Any:
    """What the topic's own policy is."""
    return bench.scalar("SELECT policy FROM cleave.topic WHERE topic_id = :t", t=bench.topic_id)


def ended(bench: Bench) -> tuple[Any, ...]:
    """How the newest candidate ended, and by whose hand."""
    [row] = bench.rows(
        "SELECT state, outcome, ended_by FROM cleave.policy_candidate WHERE topic_id = :t", t=bench.topic_id
    )
    return row


def test_a_candidate_is_weighed_approved_by_somebody_else_and_in_force(
    front_door: str, proposed: Bench, logged_in: Callable[[str], Page], history: Path
) -> None:
    record(proposed, history)
    propose(proposed, min_segments=1)
    asks, answers = logged_in("ann"), logged_in("bob")
    row = candidate(ask(front_door, asks))
    expect(row.get_by_role("button", name="Approve", exact=True)).to_be_visible(timeout=120_000)

    answers.goto(f"{front_door}{PAGES}approvals")
    waits = pages_of(answers).locator("#approvals tr").nth(1)
    expect(waits).to_contain_text(re.compile(r"promote candidate \d+ \(min_segments=1\)"))
    expect(waits).to_contain_text(re.compile(FIGURES))
    assert in_force(proposed) == IN_FORCE
    waits.get_by_role("button", name="Approve", exact=True).click()
    wait_until(lambda: in_force(proposed) != IN_FORCE, timeout_seconds=120, message="it is in force")

    asks.goto(f"{front_door}{PAGES}backtests")
    pages = pages_of(asks)
    expect(candidate(pages)).to_contain_text("promoted")
    expect(candidate(pages)).to_contain_text(re.compile(FIGURES))
    assert in_force(proposed) == {"profile": "pip483", "min_segments": 1}
    state, outcome, by = ended(proposed)
    assert (state, by) == ("promoted", "bob"), "who approved, and not who asked"
    assert re.fullmatch(FIGURES, outcome)
    candidate(pages).get_by_role("link", name=re.compile("backtest")).click()
    expect(pages.locator("#regrets .plot .point")).to_have_count(2)


@pytest.mark.chaos  # a quarter of a minute, of what `test_policy_candidates` runs without an Airflow around it
def test_a_candidate_that_costs_more_is_refused_with_both_figures_and_nobody_is_asked(
    airflow: AirflowStandalone, proposed: Bench, page: Page, history: Path
) -> None:
    record(proposed, history)
    propose(proposed, min_segments=2, max_segments=2)

    pages = ask(airflow.url, page)

    expect(candidate(pages)).to_contain_text("refused")
    expect(candidate(pages)).to_contain_text(re.compile(FIGURES))
    expect(candidate(pages).get_by_role("button")).to_have_count(0)
    assert ended(proposed)[0] == "refused"
    assert in_force(proposed) == IN_FORCE


@pytest.mark.chaos  # as above
def test_a_candidate_without_a_past_to_weigh_it_on_stays_in_shadow_and_the_page_says_why(
    airflow: AirflowStandalone, proposed: Bench, page: Page
) -> None:
    propose(proposed, min_segments=1)

    pages = ask(airflow.url, page)

    said = re.compile("failed. candidate [0-9]+ cannot be compared: .*recorded")
    expect(candidate(pages).locator("[data-answer]")).to_have_text(said)
    expect(candidate(pages).locator("[data-answer]")).to_have_class("bad")
    expect(candidate(pages).get_by_role("button", name="Weigh and promote")).to_be_visible()
    assert ended(proposed)[0] == "shadow"
    assert in_force(proposed) == IN_FORCE
