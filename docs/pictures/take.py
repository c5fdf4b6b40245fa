"""Takes the pictures of the pages from a running Airflow: `python -m docs.pictures.take http://127.0.0.1:PORT [TOPIC]`.

`make demo KEEP=1` leaves an Airflow running and prints its address; the demo's day ends with a backtest. Needs Playwright and a
Chromium (tests/support/browser.py).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlencode

from tests.support.browser import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
HERE = Path(__file__).parent
DEMO_TOPIC = "topic://demo/shop/orders"
TOPIC_HEIGHT = 1_060
"""Height of a picture of a topic in pixels; it shows the whole ring over time."""
SETTLED_MILLISECONDS = 2_500
"""Time until fonts are loaded and plots are drawn."""


def take(airflow: str, topic: str) -> None:
    """Write one file for each picture into the directory of this module."""
    with browser() as started:
        for theme in THEMES:
            page = _opened(started, airflow, f"topic?{urlencode({'name': topic, 'hours': 1})}", theme)
            frame = page.frame_locator("iframe")
            page.set_viewport_size({"width": 1280, "height": TOPIC_HEIGHT})
            frame.locator("#history .plot .point").first.click(force=True)
            frame.locator("header").first.scroll_into_view_if_needed()
            _settle(page)
            page.screenshot(path=HERE / f"topic-{theme}.png")
            if theme == "light":
                frame.locator("#history").screenshot(path=HERE / "ring-over-time.png")
            page.close()
        for name, place in (
            ("policy", f"policy?{urlencode({'level': topic})}"),
            ("decisions", f"decisions?{urlencode({'topic': topic})}"),
        ):
            page = _opened(started, airflow, place)
            page.screenshot(path=HERE / f"{name}.png")
            page.close()
        page = _opened(started, airflow, "backtests")
        page.frame_locator("iframe").locator("#runs a").first.click()
        _settle(page)
        page.screenshot(path=HERE / "backtest.png")


def _opened(started: Browser, airflow: str, place: str, theme: Theme = "light") -> Page:
    """A tab at one of Cleave's pages, drawn."""
    page = started.new_page(
        color_scheme=theme,
        viewport={"width": 1280, "height": 860},
        device_scale_factor=1.5,
        bypass_csp=True,  # for the style of `_settle`
    )
    page.goto(airflow)  # the login, where anybody may
    page.goto(f"{airflow}/plugin/cleave/cleave/{place}")
    _settle(page)
    return page


def _settle(page: Page) -> None:
    """Wait until the page is drawn, without the mouse: above a plot it would show a toolbar and a label."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(SETTLED_MILLISECONDS)
    for frame in page.frames:
        frame.add_style_tag(content=".modebar-container, .hoverlayer { visibility: hidden !important; }")


if __name__ == "__main__":
    take(sys.argv[1].rstrip("/"), sys.argv[2] if len(sys.argv) > 2 else DEMO_TOPIC)
