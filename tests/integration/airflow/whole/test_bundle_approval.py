"""What balancing proposed is approved or refused on the page of bundles: clicked there, done by a DAG, carried out on brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, Locator, Page, expect

from controller.devstack.airflow import AirflowStandalone
from tests.support.browser import PAGES, pages_of
from tests.support.bundle_operator import LOW, NAMESPACE, BundleOperator, bundle_operator

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]

DAG = "bundle_approve"
LEFT_BEHIND = """
    TRUNCATE cleave.broker_load, cleave.bundle_decision, cleave.bundle_load, cleave.bundle_load_run, cleave.bundle_proposal,
             cleave.bundle_state, cleave.namespace_bundles, cleave.approval CASCADE
"""
"""What a test leaves in the database that it shares, of brokers that are gone."""


@pytest.fixture
def operator(
    cleave_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BundleOperator]:
    """Two brokers on the database that the DAGs act on."""
    with bundle_operator(cleave_url, tmp_path, capsys, monkeypatch) as operator:
        yield operator
        operator.driver.sql(LEFT_BEHIND)


def proposed(operator: BundleOperator) -> int:
    """The one proposal of a new cycle; its id."""
    [proposal] = operator.cleave.json("bundles", "propose")["proposals"]
    return int(proposal["proposal_id"])


def row(pages: FrameLocator, proposal: int) -> Locator:
    """Of that proposal."""
    return pages.locator("#proposals tr").filter(
        has=pages.get_by_role("cell", name=str(proposal), exact=True)
    )


def stored(operator: BundleOperator, proposal: int) -> tuple[Any, ...]:
    """State of the proposal in the database, by whom, and with what words."""
    [found] = operator.driver.sql(
        "SELECT state, actor, outcome FROM cleave.bundle_proposal WHERE proposal_id = :id", id=proposal
    )
    return tuple(found)


@pytest.mark.chaos  # a quarter of a minute; the other way through the same buttons is made each time
def test_a_proposal_is_rejected_with_its_reason(
    airflow: AirflowStandalone, operator: BundleOperator, page: Page
) -> None:
    operator.uneven()
    operator.cleave.ok("bundles", "mode", NAMESPACE, "approval")
    first = proposed(operator)
    airflow.api.wait_dag(DAG)
    page.goto(f"{airflow.url}{PAGES}bundles")
    pages = pages_of(page)
    expect(row(pages, first)).to_contain_text(NAMESPACE)
    row(pages, first).get_by_label("reason").fill("not before the sale is over")
    row(pages, first).get_by_role("button", name="Reject").click()
    expect(row(pages, first)).to_have_count(0)
    assert stored(operator, first) == ("refused", "Anonymous", "not before the sale is over")


def test_a_proposal_is_approved_by_whoever_logged_in_and_then_carried_out(
    airflow: AirflowStandalone, front_door: str, operator: BundleOperator, logged_in: Callable[[str], Page]
) -> None:
    full, idle = operator.uneven()
    operator.cleave.ok("bundles", "mode", NAMESPACE, "approval")
    first = proposed(operator)
    assert operator.cleave.json("bundles", "apply") == [], "nobody has approved it"
    airflow.api.wait_dag(DAG)
    page = logged_in("ann")
    page.goto(f"{front_door}{PAGES}bundles")
    pages = pages_of(page)
    row(pages, first).get_by_role("button", name="Approve").click()
    expect(row(pages, first)).to_contain_text("approved")
    expect(row(pages, first).get_by_role("button")).to_have_count(0)
    assert stored(operator, first)[:2] == ("approved", "ann")
    assert set(operator.bench.cluster.owners.values()) == {full}

    applied, *_ = operator.cleave.json("bundles", "apply")

    assert (applied["proposal_id"], applied["state"]) == (first, "applied")
    assert {str(bundle): owner for bundle, owner in operator.bench.cluster.owners.items()}[LOW] == idle
