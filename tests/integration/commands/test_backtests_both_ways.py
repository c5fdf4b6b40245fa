"""Backtests, and what-if of the past, have the same answer whether the database is asked or `cleave serve`, within a server's bounds."""

from __future__ import annotations

import json
import re

import pytest

from controller.devstack.serving import token_of
from controller.web.access import Role
from tests.integration.commands.conftest import SPAN as HOUR
from tests.integration.commands.conftest import TOPIC
from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp

SPAN = " ".join(HOUR)
ASKED = (
    f"backtest --topic {TOPIC} --policy pip483 --policy adaptive:target_use=0.7 {SPAN}",
    f"backtest --namespace acme/shop --weights excess=10 --seeds 2 --policy pip483 {SPAN}",
    f"backtest {SPAN}",
    f"what-if {TOPIC} --set max_segments=2 {SPAN}",
)
REFUSED = (
    f"backtest --topic acme/shop/none {SPAN}",
    f"backtest --namespace acme/none {SPAN}",
    f"backtest --topic {TOPIC} --policy no-such-rule {SPAN}",
    f"backtest --topic {TOPIC} --policy pip483:max_segments=null {SPAN}",
    f"backtest --topic {TOPIC} --weights excess=much {SPAN}",
    f"backtest --topic {TOPIC} --seeds 0 {SPAN}",
    f"what-if {TOPIC} --set max_segments=0 {SPAN}",
    f"what-if {TOPIC} --set max_segments=null {SPAN}",
    f"what-if {TOPIC} --set target_use=NaN {SPAN}",
    f"what-if acme/shop/none --set max_segments=2 {SPAN}",
)


@pytest.fixture
def both(recorded: str, cleave: CommandLine, http: OverHttp) -> tuple[CommandLine, OverHttp]:
    """The command on the database, and over HTTP on a server that has the same history: an hour of a topic's."""
    assert recorded == TOPIC
    return cleave, http


def test_each_question_has_the_same_answer_and_is_kept(both: tuple[CommandLine, OverHttp]) -> None:
    cleave, http = both
    for line in ASKED:
        for form in ((), ("--json",)):
            there, here = (_unnumbered(way.ok(*line.split(), *form)) for way in (http, cleave))
            assert there == here, line

    runs = cleave.json("backtests", "list")
    assert len(runs) == 4 * len(ASKED)
    assert {(run["state"], run["asked_by"], run["engine"]) for run in runs} == {("done", "ada", "here")}


def test_each_refusal_is_the_same_line(both: tuple[CommandLine, OverHttp]) -> None:
    cleave, http = both
    for line in REFUSED:
        here = cleave(*line.split())
        assert http(*line.split()) == here, line
        assert (here.code, here.out, here.err.count("\n")) == (2, "", 1), line


def test_what_takes_too_long_for_a_call_names_the_dag(both: tuple[CommandLine, OverHttp]) -> None:
    _, http = both

    said = http("backtest", "--topic", TOPIC, "--from", "90d").err

    assert (
        "the backtest simulates 270 days (1 loads, 3 times each), but at most 200 are allowed while a caller waits"
        in said
    )
    assert "trigger the DAG policy_backtest" in said


def test_a_rehearsed_call_keeps_nothing_and_a_repeat_computes_nothing(
    both: tuple[CommandLine, OverHttp],
) -> None:
    _, http = both
    path = f"/api/v1/backtests/topics/{TOPIC}"
    said = {"policies": ["pip483"], "since": HOUR[1], "until": HOUR[3]}
    before = http.rows()
    rehearsed = http.call("POST", f"{path}?dry_run=true", said)
    assert http.rows() == before

    first, again = (http.call("POST", path, said, key="monday") for _ in range(2))

    assert rehearsed["dry_run"]
    assert rehearsed["results"]
    assert first == again
    assert [row["run_id"] for row in http.json("backtests", "list")] == [first["run_id"]]


def test_an_operator_asks_about_their_own_topics(both: tuple[CommandLine, OverHttp]) -> None:
    cleave, http = both
    http.settings["CLEAVE_API_TOKEN"] = token_of(Role.OPERATOR, "acme/shop", subject="bo")

    assert http.json(*ASKED[0].split())["results"]
    assert "does not give the right" in http(*ASKED[2].split()).err
    assert cleave.column("SELECT asked_by FROM inspect.backtest_runs") == ["bo"]


def _unnumbered(text: str) -> str:
    if text.startswith("{"):
        document = json.loads(text)
        del document["run_id"]
        return json.dumps(document)
    return re.sub(r"^backtest \d+:", "backtest N:", text)
