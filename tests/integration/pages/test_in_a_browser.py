"""What the pages do by themselves, in a real browser: they stay up to date, and lose neither what is written nor what is zoomed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from controller.domain.policy import PolicyOverride
from controller.services import policy_admin, segment_admin
from controller.store.topics import policies
from tests.support.bench import TOPIC, Bench
from tests.support.browser import tab, window
from tests.support.passes import report
from tests.support.served_pages import served_pages
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
PATIENCE_SECONDS = 30.0
ONE = f"topic?name={quote(TOPIC, safe='')}"


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    """One window for all."""
    with window(PATIENCE_SECONDS) as opened:
        yield opened


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """See `tab`."""
    with tab(context) as opened:
        yield opened


@pytest.fixture
def url(bench: Bench) -> Iterator[str]:
    """Where the pages are."""
    with served_pages(lambda: {"dsn": bench.url, "extras": {}}) as address:
        yield address


def ticks(page: Page, figure: str, axis: str) -> list[str]:
    """The labels of an axis that are seen."""
    return page.locator(f"#{figure} .{axis}tick text").all_text_contents()


def holding(page: Page, pattern: str) -> list[Route]:
    """What the page asks for there, from now on; whoever holds it lets it go on."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(pattern, hold)
    return held


def holds(page: Page, expression: str) -> None:
    """Wait for the expression to be true. Playwright's own wait evaluates it as a script of the page, which the policy forbids."""
    wait_until(lambda: page.evaluate(expression), message=expression)


def refreshed(page: Page) -> None:
    """Wait for the page to have asked for itself once more, and for what it does then."""
    with page.expect_response(lambda answer: answer.request.headers.get("x-refresh") == "1"):
        pass
    page.evaluate("looking")


def test_a_policy_that_somebody_else_changes_is_seen_and_what_is_written_stays(
    bench: Bench, url: str, page: Page
) -> None:
    bench.create(1)
    page.goto(f"{url}/policy?level={quote(TOPIC, safe='')}")
    mine, other = page.locator("#parameter-max_segments"), page.locator("#parameter-min_segments")
    mine.fill("7")

    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(min_segments=2, max_segments=9), actor="ann")

    expect(page.locator("#row-min_segments td").nth(1)).to_have_text("2")
    expect(page.locator("#row-max_segments td").nth(2)).to_have_text("topic")
    expect(other).to_have_value("2")
    expect(mine).to_have_value("7")
    assert filled_in(page) == {"level": TOPIC, "parameters": {"max_segments": 7}}

    policy_admin.change(bench.store, TOPIC, lambda _: {"max_segments": 7, "min_segments": 2}, actor="me")
    expect(page.locator("#row-max_segments td").nth(1)).to_have_text("7")
    assert filled_in(page) == {"level": TOPIC, "parameters": {}}

    policy_admin.change(bench.store, TOPIC, lambda before: {**before, "profile": "adaptive"}, actor="ann")
    profile = page.locator("#parameter-profile")
    expect(profile).to_have_value('"adaptive"')
    profile.fill("")
    assert filled_in(page) == {"level": TOPIC, "parameters": {"profile": None}}


def filled_in(page: Page, dag: str = "cleave_policy") -> Any:
    """What the form of the DAG would ask for."""
    return page.evaluate(f"filledIn(document.querySelector('form[data-dag={dag}]'))")


@pytest.mark.usefixtures("bench")
def test_parameters_of_a_candidate_are_written_as_for_the_command(url: str, page: Page) -> None:
    page.goto(f"{url}/backtests")
    form = page.locator("form[data-dag=policy_propose]")
    form.locator("[name=topic]").fill(TOPIC)
    form.locator("[name=parameters]").fill("max_segments=16 profile=pip483  enabled=true")

    parameters = {"max_segments": 16, "profile": "pip483", "enabled": True}
    assert filled_in(page, "policy_propose") == {"topic": TOPIC, "parameters": parameters}


def test_hexadecimal_axes_have_labels_when_zoomed_and_stay_zoomed(bench: Bench, url: str, page: Page) -> None:
    bench.create(4)
    report(bench, {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    page.goto(f"{url}/{ONE}")
    page.wait_for_selector("#ring .point")
    assert ticks(page, "ring", "x")[:8] == ["0000", "2000", "4000", "6000", "8000", "a000", "c000", "e000"]
    page.locator("#ring").scroll_into_view_if_needed()
    box = page.locator("#ring .nsewdrag").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.26, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.30, middle, steps=5)
    page.mouse.up()
    holds(page, "document.querySelector('#ring .plot').layout.xaxis.range[0] > 0x4000")
    zoomed = ticks(page, "ring", "x")
    assert len(zoomed) >= 3
    assert all(0x4000 < int(one, 16) < 0x5000 for one in zoomed)

    report(bench, {0: 5_000.0})
    holds(page, "document.querySelector('#ring script').textContent.includes('0.50 of')")

    refreshed(page)
    assert ticks(page, "ring", "x") == zoomed


def test_the_next_question_waits_for_the_last_answer(bench: Bench, url: str, page: Page) -> None:
    page.clock.install()
    page.goto(f"{url}/")
    held = holding(page, "**/cleave/")
    with page.expect_request("**/cleave/"):
        page.clock.run_for(6_000)
    # Four times as long as from one question to the next, and less than it waits for an answer.
    page.clock.run_for(20_000)
    page.evaluate("fetch('static/pages.css')")  # what it asked for before this has come by then

    assert len(held) == 1
    held[0].continue_()


def test_a_second_click_asks_for_no_second_run(bench: Bench, url: str, page: Page) -> None:
    bench.create(1)
    page.goto(f"{url}/{ONE}")
    held = holding(page, "**/api/v2/**")
    form = page.locator("form[data-dag=cleave_manual_split]")
    form.get_by_label("segment").fill("0")
    button = form.get_by_role("button", name="Run the DAG")

    button.dblclick()
    expect(button).to_be_disabled()
    assert len(held) == 1

    held[0].continue_()
    expect(form).to_contain_text("Not Found")
    expect(button).to_be_enabled()


def test_the_segment_beside_the_pictures_is_renewed_and_what_is_drawn_can_be_reached_by_keys(
    bench: Bench, url: str, page: Page
) -> None:
    bench.create(1)
    bench.reshape(segment_admin.splitting(0))
    page.goto(f"{url}/{ONE}")
    page.locator("#history summary").press("Enter")
    page.locator("#history a[data-segment='0']").press("Enter")
    panel = page.locator("#segment")
    expect(panel).to_contain_text("Segment 0 [0000-ffff]")
    page.locator("#ring summary").press("Enter")
    page.locator("#ring a[data-segment='1']").press("Enter")
    expect(panel).to_contain_text("Became: nothing yet")

    bench.reshape(segment_admin.splitting(1))

    expect(panel).to_contain_text("Became: 3 [0000-3fff]")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()


def test_digits_lead_to_the_pages(bench: Bench, url: str, page: Page) -> None:
    page.goto(f"{url}/policy")
    for key, heading in (
        ("1", "Fleet"),
        ("2", "Decisions"),
        ("3", "Operations"),
        ("4", "Backtests"),
        ("5", "Bundles"),
        ("6", "Policy of cluster"),
    ):
        page.locator("h1").click()
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_written_can_be_read_on_either_ground(
    bench: Bench, url: str, page: Page, scheme: str
) -> None:
    bench.topic_with(1)
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for path in ("", ONE, "decisions", "operations", "backtests", "bundles", "policy"):
        page.goto(f"{url}/{path}")
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        assert page.evaluate(FAINT) == []


FAINT = """() => {
  const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, place) => sum + one * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return node === document.documentElement || (parts(colour)[3] ?? 1) > 0 ? colour : ground(node.parentElement);
  };
  const contrast = (node) => {
    const [low, high] = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  return [...document.querySelectorAll("h1, h2, p, th, td, a, label, button, summary, b, span")]
    .filter((node) => node.textContent.trim() && contrast(node) < 4.5).map((node) => node.outerHTML.slice(0, 120));
}"""
"""What has less contrast than WCAG 2 asks of small text."""


def test_the_pages_break_no_rule_of_their_own_policy_and_no_other_script_runs(
    bench: Bench, url: str, page: Page
) -> None:
    bench.create(4)
    report(bench, {0: 1.0, 1: 6_000.0})
    page.add_init_script(
        "window.broken = []; addEventListener('securitypolicyviolation', (one) =>"
        " broken.push([one.effectiveDirective, one.sourceFile?.split('/').pop()]))"
    )
    for place in ("", ONE, f"policy?level={quote(TOPIC, safe='')}", "backtests", "decisions", "operations"):
        page.goto(f"{url}/{place}")
        refreshed(page)
        assert page.evaluate("broken") == [], place

    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.bad = 1'}))"
    )
    assert page.evaluate("window.bad") is None


def test_no_other_site_shows_the_pages_in_a_frame(bench: Bench, url: str, page: Page) -> None:
    bench.create(1)
    framing = f"<iframe src='{url}/' onload='window.loaded = true'></iframe>"
    page.route(
        "http://elsewhere.example/", lambda route: route.fulfill(content_type="text/html", body=framing)
    )
    own = f"{url}/static/framing"
    page.route(own, lambda route: route.fulfill(content_type="text/html", body=framing))

    page.goto(own)
    expect(page.frame_locator("iframe").locator("main")).to_be_visible()
    page.goto("http://elsewhere.example/")
    holds(page, "window.loaded")
    expect(page.frame_locator("iframe").locator("main")).to_have_count(0)
