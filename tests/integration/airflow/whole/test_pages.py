"""The pages in a real Airflow, in a real browser: found, in its colours, alive, and what they ask for is done."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from controller.devstack.airflow import AirflowStandalone
from tests.support.bench import TOPIC, Bench
from tests.support.browser import PAGES, pages_of
from tests.support.reports import report_load
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]


def loaded(bench: Bench, rate: float) -> int:
    """The topic's only segment, with load."""
    [only] = bench.layout.active
    bench.store.in_transaction(report_load, bench.topic_id, {only.segment_id: rate})
    return only.segment_id


def test_from_the_navigation_to_a_topic_s_segment(
    airflow: AirflowStandalone, bench: Bench, page: Page
) -> None:
    segment_id = loaded(bench, 20.0)
    page.goto(airflow.url)
    page.get_by_role("link", name="Cleave").first.click()
    pages = pages_of(page)
    pages.get_by_role("link", name=TOPIC).click()
    expect(pages.get_by_role("heading", name=TOPIC)).to_be_visible()

    pages.locator("#ring .plot .point").first.click(force=True)  # what catches the mouse lies above

    expect(pages.locator("#segment")).to_contain_text(f"Segment {segment_id} [0000-ffff]")
    expect(pages.locator("#history .plot .trace").last.locator(".point")).to_have_count(1)


def test_a_split_is_previewed_asked_for_done_and_seen_without_a_reload(
    airflow: AirflowStandalone, bench: Bench, page: Page
) -> None:
    segment_id = loaded(bench, 20.0)
    airflow.api.wait_dag("cleave_manual_split")
    page.goto(f"{airflow.url}{PAGES}")
    pages = pages_of(page)
    pages.get_by_role("link", name=TOPIC).click()
    form = pages.locator("form[data-dag=cleave_manual_split]")
    form.get_by_label("segment").fill(str(segment_id))
    form.get_by_role("button", name="Preview").click()
    expect(form).to_contain_text(f"would seal {segment_id} and create")
    assert [segment.segment_id for segment in bench.layout.active] == [segment_id]

    form.get_by_role("button", name="Run the DAG").click()

    expect(form).to_contain_text("asked for in the run manual__")
    expect(pages.locator("#segments")).to_contain_text("8000-ffff")
    assert [str(segment.hash_range) for segment in bench.layout.active] == ["0000-7fff", "8000-ffff"]
    form.get_by_role("link", name=re.compile("manual__")).click()
    expect(page).to_have_url(re.compile("/dags/cleave_manual_split/runs/manual__"))

    page.locator(
        "a[href*='cleave-run']"
    ).click()  # the tab of the run, once it is there, and not the entry of the navigation
    [(operation_id,)] = bench.rows("SELECT max(operation_id) FROM cleave.operation WHERE kind = 'split'")
    expect(pages.get_by_role("link", name=str(operation_id), exact=True)).to_be_visible()


def test_the_pages_follow_airflow_s_colours_and_the_keyboard(
    airflow: AirflowStandalone, bench: Bench, page: Page
) -> None:
    loaded(bench, 1.0)
    page.goto(f"{airflow.url}{PAGES}")
    pages = pages_of(page)
    expect(pages.locator("html")).to_have_attribute("data-theme", "light")

    page.evaluate(
        "document.documentElement.classList.replace('light', 'dark') || document.documentElement.classList.add('dark')"
    )
    expect(pages.locator("html")).to_have_attribute("data-theme", "dark")

    pages.locator("h1").click()
    page.keyboard.press("3")
    expect(pages.get_by_role("heading", name="Operations")).to_be_visible()
    page.keyboard.press("/")
    expect(pages.get_by_role("searchbox")).to_be_focused()


def test_a_policy_is_changed_in_its_form(airflow: AirflowStandalone, bench: Bench, page: Page) -> None:
    loaded(bench, 1.0)
    airflow.api.wait_dag("cleave_policy")
    page.goto(f"{airflow.url}{PAGES}policy?level={TOPIC}")
    pages = pages_of(page)
    form = pages.locator("form[data-dag=cleave_policy]")
    form.get_by_label("max_segments").fill("7")
    form.get_by_role("button", name="Preview").click()
    expect(form).to_contain_text("would have max_segments from unset to 7; 0 of 1 topics")

    form.get_by_role("button", name="Run the DAG").click()

    wait_until(  # the history may have such a row of another test's topic of that name
        lambda: bench.scalar("SELECT policy->>'max_segments' FROM cleave.topic WHERE state = 'live'") == "7",
        timeout_seconds=60,
        message="the run has set it",
    )
    expect(pages.locator("#history")).to_contain_text("max_segments")


def test_an_airflow_below_a_path_shows_the_pages(
    airflow: AirflowStandalone, below_a_path: str, bench: Bench, page: Page
) -> None:
    loaded(bench, 1.0)
    page.goto(below_a_path)
    page.get_by_role("link", name="Cleave").first.click()
    pages = pages_of(page)
    pages.get_by_role("link", name=TOPIC).click()
    expect(pages.get_by_role("heading", name=TOPIC)).to_be_visible()
    expect(pages.locator("html")).to_have_attribute("data-airflow", "/data/flow")
