"""A real headless browser on pages of this machine: Debian's Chromium or another installed one, driven by Playwright."""

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
    """Return the end of a task's link that leads to that page."""
    return f"{PAGES}{place}" if _PLUGINS_HAVE_PATHS else f"/plugin/cleave?{urlencode({'at': f'/{place}'})}"


def executable() -> str:
    """Return the path of the browser. Without one the test is skipped, or failed if CI=true."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        skip_without(f"no browser: install one of {', '.join(_NAMES)} (Debian: apt-get install chromium)")
    return path


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield one browser, closed at the end."""
    from playwright.sync_api import sync_playwright

    where = executable()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=where, args=list(_QUIET))
        yield started
        started.close()


@contextmanager
def window(patience_seconds: float) -> Iterator[BrowserContext]:
    """Yield a new browser context in the size of a desktop screen, closed at the end; each of its waits lasts at most `patience_seconds`."""
    from playwright.sync_api import expect

    with browser() as started:
        context = started.new_context(color_scheme="light", viewport={"width": 1400, "height": 1000})
        context.set_default_timeout(1000 * patience_seconds)
        expect.set_options(timeout=1000 * patience_seconds)
        yield context


@contextmanager
def tab(context: BrowserContext) -> Iterator[Page]:
    """Yield a tab, and fail at the end if its page had an error."""
    page = context.new_page()
    problems = problems_of(page)
    yield page
    page.close()
    assert problems == []


def problems_of(page: Page) -> list[str]:
    """Return a list to which errors of the page's scripts are added as they occur."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    return errors


def pages_of(page: Page) -> FrameLocator:
    """Return Cleave's pages: the content of Airflow's frame."""
    return page.frame_locator("iframe")
