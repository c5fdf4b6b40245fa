"""Candidates of policy are proposed, weighed, promoted and withdrawn alike, whether the database is asked or `cleave serve`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.over_http import OverHttp, serving
from tests.support.recorded import keep_days

pytestmark = pytest.mark.timeout(400)
HERE, THERE = "acme/shop/here", "acme/shop/hier"
"""A topic of each way, with the same past."""
BETTER = ("split_cooldown_seconds=0", "merge_window_seconds=60", "merge_msg_rate_in=4000")
LOOKS = (
    "policy candidates",
    f"policy candidates --topic {HERE}",
    "policy candidates --limit 1",
)
CHANGES = (
    "policy propose {topic} max_segments=2",
    "policy propose {topic} max_segments=2",
    "policy withdraw {topic} --reason enough",
    "policy withdraw {topic}",
    "policy propose {topic} max_segments=2 --reason again",
    "policy promote {topic} --dry-run",
    "policy promote {topic}",
    "policy promote {topic}",
    "policy propose {topic} " + " ".join(BETTER),
    "policy promote {topic} --days 7",
    "policy promote {topic}",
)
"""One after the other: a candidate that is withdrawn, one that is refused, and one that is promoted."""
REFUSED = (
    "policy propose {topic} max_segments=null",
    "policy propose {topic} colour=red",
    "policy propose {topic} max_segments=0",
    "policy propose {topic} target_use=NaN",
    "policy propose acme/shop/none max_segments=2",
    "policy candidates --topic acme/shop/none",
    "policy withdraw {topic}",
    "policy promote {topic}",
    "policy promote acme/shop/none",
)
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
_NEW_EACH_TIME = ("candidate_id", "topic_id", "run_id", "proposed_at", "ended_at")


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some days of load of topics 1 and 2, until now."""
    url = tmp_path_factory.mktemp("past") / "history"
    keep_days(url, 4, topics=(1, 2))
    return url


@pytest.fixture
def both(
    cleave: CommandLine,
    past: Path,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[CommandLine, OverHttp]]:
    """The command on the database, and over HTTP on a server that has the same history."""
    for topic in (HERE, THERE):
        cleave.ok("topics", "create", topic, "--segments", "2")
        cleave.ok("policy", "set", topic, "profile=pip483")
    monkeypatch.setenv("CLEAVE_HISTORY_URL", str(past))
    with serving(database, tmp_path, history_url=past) as server:
        yield cleave, OverHttp(cleave, capsys, monkeypatch, server)


def test_a_candidate_lives_alike(both: tuple[CommandLine, OverHttp]) -> None:
    cleave, http = both
    for line in CHANGES:
        said = []
        for way, topic in ((cleave, HERE), (http, THERE)):
            answer = way(*line.format(topic=topic).split())
            assert answer.err == "", line
            said.append((answer.code, _same_of_both(answer.out, topic)))
        (code, here), (other_code, there) = said
        assert (code, _FIGURE.sub("n", here).split()) == (other_code, _FIGURE.sub("n", there).split()), line
        assert _figures(there) == pytest.approx(_figures(here), rel=0.01), line

    for line in LOOKS:
        for form in ((), ("--json",)):
            assert http.ok(*line.split(), *form) == cleave.ok(*line.split(), *form), line
    states = [(row["topic"], row["state"], row["proposed_by"]) for row in cleave.json("policy", "candidates")]
    assert sorted(set(states)) == sorted(
        (f"topic://{topic}", state, "ada")
        for topic in (HERE, THERE)
        for state in ("promoted", "refused", "withdrawn")
    )
    assert (
        cleave.json("policy", "get", THERE)["parameters"] == cleave.json("policy", "get", HERE)["parameters"]
    )
    asked_by = cleave.column("SELECT DISTINCT asked_by FROM inspect.backtest_runs")
    assert asked_by == ["ada"]


def test_documents_are_alike(both: tuple[CommandLine, OverHttp]) -> None:
    for line in (CHANGES[0], CHANGES[2]):
        found = _documents(both, line)
        assert found[0] == found[1], line


def test_documents_of_what_is_weighed_are_alike(both: tuple[CommandLine, OverHttp]) -> None:
    _documents(both, CHANGES[0])

    def minute() -> datetime:
        return datetime.now(UTC).replace(second=0, microsecond=0)

    begun = None
    while begun != minute():  # the past that both are weighed on ends with a minute
        begun = minute()
        found = _documents(both, CHANGES[5])

    assert found[0] == found[1]


def _documents(both: tuple[CommandLine, OverHttp], line: str) -> list[str]:
    """What each way answers, without what is another for each topic and time."""
    found = []
    for way, topic in zip(both, (HERE, THERE), strict=True):
        document = json.loads(way(*line.format(topic=topic).split(), "--json").out)
        for row in (document, *document.get("results", ())):
            for name in _NEW_EACH_TIME:
                row.pop(name, None)
        found.append(_same_of_both(str(document), topic))
    return found


def test_each_refusal_is_the_same_line(both: tuple[CommandLine, OverHttp]) -> None:
    cleave, http = both
    before = http.rows()
    for line in REFUSED:
        here = cleave(*line.format(topic=HERE).split())
        assert http(*line.format(topic=HERE).split()) == here, line
        assert (here.code, here.out, here.err.count("\n")) == (2, "", 1), line
    assert http.rows() == before


def test_a_rehearsal_over_http_changes_nothing(both: tuple[CommandLine, OverHttp]) -> None:
    cleave, http = both
    assert "would be in shadow" in http.rehearsed("policy", "propose", THERE, *BETTER)
    cleave.ok("policy", "propose", THERE, *BETTER)
    assert "would be promoted" in http.rehearsed("policy", "promote", THERE)
    assert "would be withdrawn" in http.rehearsed("policy", "withdraw", THERE)


def test_a_server_weighs_on_so_many_days_and_names_what_takes_more(
    both: tuple[CommandLine, OverHttp],
) -> None:
    _, http = both
    http.ok("policy", "propose", THERE, *BETTER)

    said = http.refused("policy", "promote", THERE, "--days", "31")

    assert "days must be at most 30 on a server" in said
    assert "trigger the DAG policy_promote" in said


def _figures(text: str) -> list[float]:
    """They may be as good as equal only: the past that a candidate is weighed on ends with the minute."""
    return [float(one.replace(",", "")) for one in _FIGURE.findall(text)]


def _same_of_both(text: str, topic: str) -> str:
    """Without what is another for each topic."""
    return re.sub(r"(candidate|backtest) \d+", r"\1 N", text.replace(topic, "TOPIC"))
