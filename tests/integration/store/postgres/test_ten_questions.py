"""Ten questions at night: every query of the how-to, run as the inspector, gives the true answer on a real history."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import QuotedString
from psycopg2.extras import RealDictCursor

from controller.domain.evaluator import ALL_LANES
from controller.domain.policy import PolicyOverride
from controller.postgres.address import DatabaseAddress
from controller.services.autoscaler import run_pass
from controller.services.segment_admin import merging, splitting
from controller.store.topics import policies
from tests.support.bench import TOPIC, Bench
from tests.support.reports import report_load

HOW_TO = Path(__file__).parents[4] / "docs" / "how-to" / "ten-questions-at-night.md"
AS_INSPECTOR = "-c role=cleave_inspector"

Row = dict[str, Any]


def questions() -> dict[int, list[str]]:
    """The SQL statements of the document, by the number of the question."""
    found = {}
    for section in re.split(r"^## ", HOW_TO.read_text(), flags=re.MULTILINE)[1:]:
        number = re.match(r"\d+", section)
        if number:
            blocks = re.findall(r"```sql\n(.*?)```", section, flags=re.DOTALL)
            found[int(number[0])] = [part.strip() for part in "".join(blocks).split(";") if part.strip()]
    return found


@dataclass
class InspectedHistory:
    """A database with a history, and an inspector who asks it."""

    bench: Bench
    variables: dict[str, str]
    hot_split: int
    stuck: int

    def ask(self, number: int) -> list[list[Row]]:
        """The rows of each statement of a question, psql's variables filled in as psql does."""
        connection = psycopg2.connect(dsn(self.bench.url), options=AS_INSPECTOR)
        try:
            with connection, connection.cursor(cursor_factory=RealDictCursor) as cursor:
                answers = []
                for statement in questions()[number]:
                    cursor.execute(interpolate(statement, self.variables))
                    answers.append([dict(row) for row in cursor])
                return answers
        finally:
            connection.close()


def dsn(url: str) -> str:
    """The URL as libpq reads it."""
    return DatabaseAddress.of(url).uri


def interpolate(statement: str, variables: dict[str, str]) -> str:
    """:'name' as a literal, :name as it is."""

    def fill(match: re.Match[str]) -> str:
        value = variables[match[2]]
        return QuotedString(value).getquoted().decode() if match[1] else value

    return re.sub(r"(?<!:):(')?([a-z]+)(?:')?", fill, statement)


@pytest.fixture
def night(bench: Bench) -> InspectedHistory:
    """Two segments; 0 got hot and was split, its lower half and nothing else merged by hand; one split hangs."""
    bench.topic_with(2)
    report(bench, {0: 25_000.0, 1: 5_000.0})
    [hot_split] = run_pass(bench.store, bench.planes, ALL_LANES, decided_by="night", limit=10).operation_ids
    bench.drive(hot_split)
    bench.reshape(merging(3, 1))
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:id, 'billing', 'c-1')",
        id=bench.topic_id,
    )
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(max_segments=2))
    report(bench, {4: 25_000.0})
    run_pass(bench.store, bench.planes, ALL_LANES, decided_by="night", limit=10)
    stuck = bench.intend(splitting(2)).operation.operation_id
    bench.execute(
        "UPDATE cleave.operation SET deadline = clock_timestamp() WHERE operation_id = :id", id=stuck
    )
    created_at = bench.scalar("SELECT committed_at FROM inspect.layout_changes WHERE epoch = 0")
    return InspectedHistory(
        bench,
        {"topic": TOPIC, "segment": "3", "instant": created_at.isoformat(), "key": "key1"},
        hot_split,
        stuck,
    )


def report(bench: Bench, rates: dict[int, float]) -> None:
    """Load of the topic's segments."""
    with bench.store.transaction() as tx:
        report_load(tx, bench.topic_id, rates, cold_for=timedelta(hours=1))


def test_there_are_ten_questions_and_each_has_its_query() -> None:
    assert sorted(questions()) == list(range(1, 11))
    assert all(questions().values())


def test_the_answers_are_true(night: InspectedHistory) -> None:
    bench = night.bench

    assert night.ask(1) == [[]]

    [now] = night.ask(2)
    assert [(row["segment_id"], row["busy_in_operation"]) for row in now] == [(2, night.stuck), (4, None)]
    assert [row["hash_range"] for row in now] == [str(segment.hash_range) for segment in bench.layout.active]

    [changes] = night.ask(3)
    assert [(row["epoch"], row["kind"], row["sealed"], row["created"]) for row in changes] == [
        (2, "merge", [1, 3], [4]),
        (1, "split", [0], [2, 3]),
        (0, "create", [], [0, 1]),
    ]
    assert [(row["origin"], row["actor"]) for row in changes[:2]] == [("manual", "tester"), ("auto", "night")]

    [lineage] = night.ask(4)
    assert [(row["depth"], row["segment_id"], row["relation"], row["made_by"]) for row in lineage] == [
        (-1, 0, "ancestor", "create"),
        (0, 3, "itself", "split"),
        (1, 4, "descendant", "merge"),
    ]

    [owner] = night.ask(5)
    assert [(row["epoch"], row["segment_id"], row["hash_range"]) for row in owner] == [(0, 1, "8000-ffff")]


def test_the_answers_about_decisions_and_load_are_true(night: InspectedHistory) -> None:
    [why_not] = night.ask(6)
    at_max = [row for row in why_not if row["reason"] == "at-max-segments"]
    assert [
        (row["lane"], row["segment_id"], row["value"], row["needed"], row["is_current"]) for row in at_max
    ] == [("load", 4, 2, 2, True)]

    [decisions] = night.ask(7)
    assert [(row["acts"], row["operations"], row["decided_by"]) for row in decisions] == [
        (["split 0 (msgRateIn)"], [night.hot_split], "night")
    ]

    [load, sources] = night.ask(9)
    assert [
        (
            row["segment_id"],
            row["hottest_metric"],
            row["hottest_ratio"],
            row["is_hot"],
            row["is_stale"],
        )
        for row in load
    ] == [
        (4, "msg_rate_in", 2.5, True, False),
        (2, None, None, None, True),
    ]
    assert [row["source"] for row in sources] == ["broker-1"]


def test_the_answers_about_what_hangs_are_true(night: InspectedHistory) -> None:
    [stuck, steps] = night.ask(8)

    assert [(row["operation_id"], row["state"], row["stuck_because"]) for row in stuck] == [
        (night.stuck, "intended", "past its deadline")
    ]
    assert steps == []

    [waiting] = night.ask(10)
    assert {row["segment_id"]: (row["barrier"], row["waits_for"]) for row in waiting} == {
        0: ("readable", []),
        1: ("readable", []),
        2: ("withheld", [0]),
        3: ("withheld", [0]),
        4: ("withheld", [0, 1, 3]),
    }
    assert {tuple(row["consumer_names"]) for row in waiting} == {("c-1",)}


def test_drained_segments_let_their_children_go(night: InspectedHistory) -> None:
    night.bench.execute(
        "INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id) SELECT :id, 'billing', 0",
        id=night.bench.topic_id,
    )

    [waiting] = night.ask(10)

    assert {row["segment_id"]: (row["barrier"], row["waits_for"]) for row in waiting} == {
        1: ("readable", []),
        2: ("readable", []),
        3: ("readable", []),
        4: ("withheld", [1, 3]),
    }


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed here")
def test_psql_itself_runs_the_whole_document(night: InspectedHistory) -> None:
    """The statements as they stand, variables given as the document says."""
    script = (
        ";\n".join(statement for number in sorted(questions()) for statement in questions()[number]) + ";\n"
    )
    variables = [f"--set={name}={value}" for name, value in night.variables.items()]
    done = subprocess.run(
        ["psql", "-X", "--set=ON_ERROR_STOP=1", "--csv", *variables, dsn(night.bench.url)],
        input=script,
        env={**os.environ, "PGOPTIONS": AS_INSPECTOR},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    headers = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("topic,", "segment_id,", "epoch,", "depth,", "lane,"))
    ]
    assert len(headers) >= 6
