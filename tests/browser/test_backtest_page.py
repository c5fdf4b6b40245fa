"""A backtest's report as Chromium draws it, on a light page and on a dark one: nothing is cut off, and all of it can be read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.backtest_page import LOADS, LONG, written

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

_LEAST_CONTRAST = 4.5
"""Of small text, by WCAG 2."""
_LOOK = """
<script>
window.addEventListener("load", () => setTimeout(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((one) => {
      const part = one / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = getComputedStyle(document.body).backgroundColor;
  const found = {ground, wider: document.documentElement.scrollWidth - innerWidth, cut: [], faint: [], texts: []};
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const edge = plot.getBoundingClientRect();
    for (const text of plot.querySelectorAll("svg text")) {
      const box = text.getBoundingClientRect();
      if (!text.textContent || !box.width) continue;
      found.texts.push(text.textContent);
      if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 1 || box.bottom > edge.bottom + 1)
        found.cut.push(text.textContent);
      const {fill, textShadow} = getComputedStyle(text);  // a shadow lies between the text and any colour behind the text
      if (contrast(fill, textShadow === "none" ? ground : textShadow) < LEAST) found.faint.push(text.textContent);
    }
  }
  for (const cell of document.querySelectorAll("h1, h2, p, th, td"))
    if (contrast(getComputedStyle(cell).color, ground) < LEAST) found.faint.push(cell.textContent);
  for (const table of document.querySelectorAll(".table"))
    if (table.scrollWidth > table.clientWidth + 1) found.cut.push("a table");
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify(found);
  document.body.append(told);
}, 1000));
</script>
""".replace("LEAST", str(_LEAST_CONTRAST))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    written(path)
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{_LOOK}</body>"), encoding="utf-8")
    return path


def drawn(page: Path, profile: Path, *, width: int, scheme: int) -> dict[str, Any]:
    """What the page looks like; `scheme` is Chromium's number of a preferred colour scheme."""
    assert CHROMIUM is not None
    said = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-unsafe-swiftshader",
            f"--user-data-dir={profile}",
            f"--window-size={width},4000",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    told = re.search(r'<pre id="told">(.*?)</pre>', said.stdout, re.DOTALL)
    assert told is not None, said.stderr[-500:]
    found: dict[str, Any] = json.loads(
        told[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    return found


@pytest.mark.parametrize(("scheme", "ground"), [(1, "rgb(255, 255, 255)"), (0, "rgb(24, 24, 24)")])
@pytest.mark.parametrize("width", [1100, 1700])
def test_nothing_is_cut_off_and_all_can_be_read(
    page: Path, tmp_path: Path, width: int, scheme: int, ground: str
) -> None:
    found = drawn(page, tmp_path, width=width, scheme=scheme)

    assert found["ground"] == ground
    assert found["texts"].count("time, UTC") == 2 * len(LOADS)  # the lines and the rings
    assert found["texts"].count(LONG) == 2 * len(LOADS)  # in each legend
    assert found["wider"] <= 0
    assert found["cut"] == []
    assert found["faint"] == []
