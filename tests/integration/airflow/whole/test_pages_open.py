"""Each of the pages opens in whichever Airflow this is, without an error in the browser, and a button does its work."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from controller.devstack.airflow import AirflowStandalone
from tests.support.bench import TOPIC, Bench
from tests.support.browser import PAGES, pages_of
from tests.support.reports import report_load

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]

OPENED = {
    "": "Fleet",
    f"topic?name={quote(TOPIC, safe='')}": TOPIC,
    "decisions": "Decisions",
    "operations": "Operations",
    "backtests": "Backtests",
    "bundles": "Bundles",
    "policy": "Policy",
}
"""The heading of each page."""


@pytest.fixture
def quiet(page: Page) -> Iterator[Page]:
    """A tab whose console has no error of Cleave's pages; what Airflow's own scripts say is Airflow's."""
    said: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        where = str(message.location.get("url", ""))
        if message.type == "error" and "/cleave/" in where:
            said.append(f"{where}: {message.text}")

    page.on("console", hear)
    yield page
    assert said == []


@pytest.mark.parametrize("path", OPENED)
def test_it_opens_without_an_error(airflow: AirflowStandalone, bench: Bench, quiet: Page, path: str) -> None:
    assert bench.topic_id
    quiet.goto(f"{airflow.url}{PAGES}{path}")
    expect(pages_of(quiet).get_by_role("heading", level=1)).to_contain_text(OPENED[path])


def test_a_split_that_is_asked_for_is_done_and_the_form_says_so(
    airflow: AirflowStandalone, bench: Bench, quiet: Page
) -> None:
    [only] = bench.layout.active
    bench.store.in_transaction(report_load, bench.topic_id, {only.segment_id: 20.0})
    airflow.api.wait_dag("cleave_manual_split")
    quiet.goto(f"{airflow.url}{PAGES}topic?name={quote(TOPIC, safe='')}")
    form = pages_of(quiet).locator("form[data-dag=cleave_manual_split]")
    form.get_by_label("segment").fill(str(only.segment_id))
    form.get_by_role("button", name="Run the DAG").click()
    expect(form).to_contain_text(": done")
    assert len(bench.layout.active) == 2
