"""The rules, the board and the runbook name what there is, and the rules do what they are to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from controller import client_metrics
from controller import metrics as process_metrics
from controller.bundles.metrics import GAUGES
from controller.web.fleet_metrics import described
from tests.support.missing import skip_without

DOCS = Path(__file__).parents[3] / "docs"
MONITORING, RUNBOOK = DOCS / "monitoring", DOCS / "runbook"
RULES: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
BOARD: dict[str, Any] = json.loads((MONITORING / "board.json").read_text())
ALERTS = [rule["alert"] for rule in RULES]
_METRIC = re.compile(r"\b(?:cleave|pulsar)_[a-z_]+\b")
_LOG_LINES = re.compile(r"log lines? (?:with )?((?:`[^`]+`(?:, | and )?)+)")


def metrics() -> set[str]:
    """Every series that some process serves."""
    found = {name for name, *_ in described()} | set(GAUGES)
    for value in [*vars(process_metrics).values(), *vars(client_metrics).values()]:
        if isinstance(value, MetricWrapperBase):
            [one] = value.describe()
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(one.type, [""])
            found |= {one.name + suffix for suffix in suffixes}
    return found


def expressions() -> list[str]:
    """What the rules and the board ask for."""
    panels = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
    return [*panels, *(rule["expr"] for rule in RULES)]


def test_rules_and_board_ask_for_what_is_served() -> None:
    asked = {name for expression in expressions() for name in _METRIC.findall(expression)}
    assert asked - metrics() == set()


def test_the_board_shows_what_the_rules_watch() -> None:
    watched = {name for rule in RULES for name in _METRIC.findall(rule["expr"])}
    shown = {name for expression in expressions()[: -len(RULES)] for name in _METRIC.findall(expression)}
    assert watched - shown == {"cleave_database_up"}, "without the database there is nothing to show"


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        assert max(x for x, _ in mine) < 24, panel["title"]
        cells |= mine


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    assert sorted(ALERTS) == sorted(page.stem for page in RUNBOOK.glob("*.md"))
    for rule in RULES:
        name = rule["alert"]
        text = (RUNBOOK / f"{name}.md").read_text()
        assert rule["annotations"]["runbook"] == f"docs/runbook/{name}.md"
        assert text.startswith(f"# {name}\n")
        for part in ("**Meanwhile.**", "## Look", "## Do"):
            assert part in text, (name, part)
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("page", "warn")
        assert f"[{name}](../runbook/{name}.md)" in (DOCS / "how-to" / "watch-the-fleet.md").read_text()


def test_each_log_line_that_a_page_quotes_is_written() -> None:
    """A page quotes as: log line `text`. A text of the code begins with what is quoted."""
    code = "\n".join(path.read_text() for path in (DOCS.parent / "controller").rglob("*.py"))
    quoted = [
        (page.stem, text)
        for page in RUNBOOK.glob("*.md")
        for lines in _LOG_LINES.findall(" ".join(page.read_text().split()))
        for text in re.findall("`([^`]+)`", lines)
    ]
    assert len(quoted) >= 10
    assert [(page, text) for page, text in quoted if f'"{text}' not in code] == []


def test_each_alert_is_tried() -> None:
    tried = yaml.safe_load((MONITORING / "alerts.test.yml").read_text())["tests"]
    assert {test["name"] for test in tried} == set(ALERTS)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it; without it the test is skipped, and failed where CI=true."""
    found = shutil.which("promtool")
    if found is None:
        skip_without("promtool is missing: it comes with Prometheus (on Debian, the package prometheus)")
    return subprocess.run(
        [found, *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts.test.yml"),
    ],
    ids=" ".join,
)
def test_prometheus_own_tool_agrees(arguments: tuple[str, ...]) -> None:
    said = promtool(*arguments)
    assert said.returncode == 0, said.stdout + said.stderr
