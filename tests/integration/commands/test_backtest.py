"""`cleave backtest` and `cleave backtests`: what policies would have cost, for people, programs and as a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.commands.conftest import SPAN
from tests.support.command_line import CommandLine


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "requests.csv"
    lines = [f"2026-01-01 {minute // 60:02}:{minute % 60:02}:00,{minute % 90}" for minute in range(1_440)]
    path.write_text("\n".join(["timestamp,value", *lines]))
    return path


def test_a_topic_is_answered_for_and_the_run_is_kept(cleave: CommandLine, recorded: str) -> None:
    asked = ("backtest", "--topic", recorded, *SPAN, "--policy", "pip483", "--policy", "adaptive")

    answer = cleave.json(*asked)
    said = cleave.ok(*asked)

    assert [row["policy"] for row in answer["results"]] == ["adaptive", "pip483"]
    summary = {row["policy"]: row for row in answer["summary"]}
    for row in answer["results"]:
        assert row["regret"] == row["cost"] / row["least_cost"] > 1
        assert summary[row["policy"]]["regret"] == pytest.approx(row["regret"])
    assert said.startswith("backtest 2: 1 topic, ")
    assert {line.split()[0] for line in said.splitlines()[2:]} == {"adaptive", "pip483"}
    runs = cleave.json("backtests", "list")
    assert [(run["run_id"], run["state"], run["asked_by"]) for run in runs] == [
        (2, "done", "ada"),
        (1, "done", "ada"),
    ]
    shown = cleave.json("backtests", "show", "1")
    assert shown["summary"] == answer["summary"]
    assert "pip483" in cleave.ok("backtests", "show", "1")
    assert "done" in cleave.ok("backtests", "list")


def test_parameters_and_weights_are_heeded(cleave: CommandLine, recorded: str) -> None:
    crowded = "pip483:max_segments=2,split_cooldown_seconds=0"
    asked = ("backtest", "--topic", recorded, *SPAN, "--policy", crowded)

    [usual] = cleave.json(*asked)["results"]
    [lenient] = cleave.json(*asked, "--weights", "excess=0")["results"]

    assert usual["policy"] == crowded
    assert usual["reshapes"] == 0
    assert usual["overload_seconds"] == 19 * 60
    assert lenient["cost"] == lenient["segment_hours"] == 2.0
    assert usual["cost"] == pytest.approx(2.0 + 20 * usual["excess_hours"])


def test_a_trace_from_a_file(cleave: CommandLine, trace: Path) -> None:
    answer = cleave.json(
        "backtest", "--trace", str(trace), "--days", "1", "--policy", "pip483", "--seeds", "2"
    )

    assert [(row["load"], row["seed"], row["topic_id"]) for row in answer["results"]] == [
        ("requests.csv", 0, None),
        ("requests.csv", 1, None),
    ]
    assert answer["engine"] == "here"


def test_the_report_has_everything_in_it(cleave: CommandLine, recorded: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"

    said = cleave.ok("backtest", "--topic", recorded, *SPAN, "--html", str(page))

    assert f"report: {page}" in said
    html = page.read_text()
    assert "<script src=" not in html
    for word in ("in-force", "adaptive", "pip483", "The hottest segment", "Regret at each price", recorded):
        assert word in html


def test_what_cannot_be_asked_is_one_line(cleave: CommandLine, recorded: str, trace: Path) -> None:
    topic = ("--topic", recorded)
    for given, words in [
        ((*topic, "--namespace", "acme/shop"), "give only one of"),
        (
            ("--trace", str(trace), "--trace", str(trace)),
            f"2 traces are named {trace.name}; rename",
        ),
        (("--trace", str(trace), "--from", "1d"), "--from and --to apply to topics"),
        ((*topic, "--policy", "nonsense"), "is unknown; choose one of"),
        ((*topic, "--policy", "pip483:max_segments"), "must have the form"),
        ((*topic, "--policy", "pip483:nonsense=1"), "nonsense"),
        ((*topic, "--policy", "pip483:max_segments=0"), "max_segments"),
        ((*topic, "--policy", "pip483:max_segments=null"), "give the value"),
        ((*topic, "--policy", "pip483", "--policy", "pip483"), "named twice"),
        ((*topic, "--weights", "excess=-1"), "the weights are"),
        ((*topic, "--weights", "price=1"), "the weights are"),
        ((*topic, "--seeds", "0"), "seeds"),
        ((*topic, "--actuation-seconds", "-1"), "actuation"),
        ((*topic, "--engine", "abacus"), "--engine abacus"),
        ((*topic, "--from", "soon"), "neither an instant"),
    ]:
        answer = cleave("backtest", *given)

        assert (answer.code, answer.out) == (2, ""), answer.err
        assert answer.err.count("\n") == 1
        assert words in answer.err


def test_no_recorded_load_says_where_it_was_looked_for(cleave: CommandLine, orders: str) -> None:
    answer = cleave("backtest", "--topic", orders, "--from", "2h")

    assert answer.code == 2
    assert "no load was recorded" in answer.err
    assert "landing-history" in answer.err
    [run] = cleave.json("backtests", "list")
    assert (run["state"], "no load was recorded" in run["error"]) == ("failed", True)
    assert "no load was recorded" in cleave.ok("backtests", "show", str(run["run_id"]))


def test_a_run_that_is_not_there_is_one_line(cleave: CommandLine) -> None:
    assert "backtest 7 does not exist" in cleave.refused("backtests", "show", "7")


@pytest.mark.usefixtures("recorded")
def test_a_reader_sees_what_was_run_and_may_run_nothing(
    cleave: CommandLine, orders: str, request: pytest.FixtureRequest
) -> None:
    cleave.ok("backtest", "--topic", orders, *SPAN, "--policy", "pip483")
    request.getfixturevalue("reader")

    assert [run["run_id"] for run in cleave.json("backtests", "list")] == [1]
    assert cleave.json("backtests", "show", "1")["rows"][0]["policy"] == "pip483"
    assert "permission denied" in cleave("backtest", "--topic", orders, *SPAN).err


def test_a_what_if_of_the_past_is_a_backtest_of_two(cleave: CommandLine, recorded: str) -> None:
    changes = ("--set", "max_segments=2", "--set", "merge_cooldown_seconds=60")

    answer = cleave.json("what-if", recorded, *changes, *SPAN)

    rows = {row["policy"]: row for row in answer["summary"]}
    assert set(rows) == {"in force", "what if"}
    assert rows["what if"]["reshapes"] == 0 < rows["in force"]["reshapes"]
    assert rows["what if"]["cost"] > rows["in force"]["cost"]
    [run] = cleave.json("backtests", "list")
    assert run["inputs"]["policies"][1]["parameters"] == {"max_segments": 2, "merge_cooldown_seconds": 60}
    assert "what if" in cleave.ok("what-if", recorded, *changes, *SPAN)


def test_a_what_if_of_the_past_is_refused_in_one_line(cleave: CommandLine, recorded: str) -> None:
    for given, words in [
        (("--set", "max_segments=null"), "give the value"),
        (("--set", "max_segments=0"), "max_segments"),
        (("--set", "nonsense=1"), "nonsense"),
        (("--set", "max_segments=3", "--lanes", "load"), "--lanes applies to the present"),
    ]:
        answer = cleave("what-if", recorded, *given, *SPAN)

        assert (answer.code, answer.out) == (2, ""), answer.err
        assert answer.err.count("\n") == 1
        assert words in answer.err
