"""What is kept of measured figures: a page each, and pages whose sections are measured one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as report
from benchmarks import kept


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return tmp_path


def test_what_is_measured_again_takes_the_place_of_what_was_before(results: Path) -> None:
    kept.keep("decide", {"benchmark": "decide", "machine": {"cores": 2}, "ms": 7})
    kept.keep("decide", {"benchmark": "decide", "machine": {"cores": 4}, "rows": 1})

    found = json.loads((results / "decide.json").read_text())

    assert found.pop("measured_at").startswith("20")
    assert found.pop("commit") == kept.commit()
    assert found == {"benchmark": "decide", "machine": {"cores": 4}, "rows": 1}


def test_a_section_leaves_the_others_as_they_were(results: Path) -> None:
    for section, sent in (("embedded", 1), ("pulsar", 2), ("embedded", 3)):
        kept.keep("chaos", {"machine": {"cores": 2}, "command": "make chaos", "sent": sent}, section=section)

    found = json.loads((results / "chaos.json").read_text())

    assert {name: found[name]["sent"] for name in ("embedded", "pulsar")} == {"embedded": 3, "pulsar": 2}
    assert found["measured_at"] == found["embedded"]["measured_at"]
    assert "sent" not in found


def test_a_page_names_the_command_that_made_it(results: Path) -> None:
    kept.keep("soak", {"machine": {"cores": 2}, "command": "make soak", "rounds": 500})
    kept.keep("decide", {"machine": {"cores": 2}, "ms": 7})

    page = report.report()

    assert "## soak\n\n`make soak`\n" in page
    assert "| rounds | 500 |" in page
    assert f" at commit `{kept.commit()}`; " in page
    assert "`.venv/bin/python -m benchmarks.bench_decide`" in page


def test_figures_that_were_just_kept_do_not_make_the_code_a_changed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for name in ("benchmarks/results/decide.json", "benchmarks/RESULTS.md", "code.py"):
        (tmp_path / name).write_text("1\n")
    for command in (("init", "-q"), ("add", "-A"), (*own, "commit", "-q", "-m", "x")):
        kept.git(tmp_path, *command)
    monkeypatch.setattr(kept, "ROOT", tmp_path)

    for name in ("benchmarks/results/decide.json", "benchmarks/RESULTS.md"):
        (tmp_path / name).write_text("2\n")
    assert len(kept.commit()) == 12

    (tmp_path / "code.py").write_text("2\n")
    assert kept.commit().endswith("-dirty")
