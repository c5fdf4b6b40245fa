"""A real browser, headless, on pages of this machine: Debian's Chromium or whichever is there, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from packaging.version import Version

from tests.support.missing import skip_without

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page

_PLUGINS_HAVE_PATHS = Version(version("apache-airflow")) >= Version("3.2")
PAGES = "/plugin/cleave/cleave/" if _PLUGINS_HAVE_PATHS else "/plugin/cleave?at=/"
"""Where Airflow shows Cleave's pages; what comes after it is the page's own address. Before 3.2 a plugin has one address."""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""It talks to nobody but the pages; without a sandbox, since tests may run as root."""


def linked(place: str) -> str:
    """How a link from a task ends that leads to that page."""
    return f"{PAGES}{place}" if _PLUGINS_HAVE_PATHS else f"/plugin/cleave?{urlencode({'at': f'/{place}'})}"


def executable() -> str:
    """Where the browser is; without one the test is skipped, and failed where CI=true."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        skip_without(f"no browser: install one of {', '.join(_NAMES)} (Debian: apt-get install chromium)")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """One browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    where = executable()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=where, args=list(_QUIET))
        yield started
        started.close()


@contextmanager
def window(patience_seconds: float) -> Iterator[BrowserContext]:
    """A browser without a past, as wide as a desk's screen; that long it waits for anything."""
    from playwright.sync_api import expect

    with browser() as started:
        context = started.new_context(color_scheme="light", viewport={"width": 1400, "height": 1000})
        context.set_default_timeout(1000 * patience_seconds)
        expect.set_options(timeout=1000 * patience_seconds)
        yield context


@contextmanager
def tab(context: BrowserContext) -> Iterator[Page]:
    """A tab in which nothing may go wrong unnoticed."""
    page = context.new_page()
    problems = problems_of(page)
    yield page
    page.close()
    assert problems == []


def problems_of(page: Page) -> list[str]:
    """Errors of the page's scripts, as they come."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def pages_of(page: Page) -> FrameLocator:
    """Cleave's pages: what is in Airflow's frame."""
    return page.frame_locator("iframe")
