"""`cleave decisions replay`: the ledger of a topic's whole life is decided again, and what somebody changed is found."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from controller.domain.decision import Lane
from controller.domain.evaluator import ALL_LANES
from controller.domain.policy import PolicyOverride
from controller.domain.profiles.pip483 import CODE_VERSION
from controller.store.decisions import decision_log
from controller.store.topics import policies
from tests.support.bench import TOPIC, Bench
from tests.support.command_line import CommandLine
from tests.support.passes import COLD, HOT, LOAD, WARM, register, report, run


def set_policy(bench: Bench, **parameters: Any) -> None:
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(**parameters), actor="tests")


def pass_and_run(bench: Bench, rates: dict[int, float], lanes: Collection[Lane] = ALL_LANES) -> None:
    """Load comes in, a pass decides, and what it intends is done."""
    report(bench, rates, cold_for=timedelta(hours=1))
    for operation_id in run(bench, lanes).operation_ids:
        bench.drive(operation_id)


@pytest.fixture
def life(bench: Bench) -> Bench:
    """A topic that was hot, got consumers, became cold, changed its policy; with passes of several lanes."""
    bench.topic_with(2)
    pass_and_run(bench, {0: HOT + 0.1, 1: HOT + 0.3}, LOAD)
    pass_and_run(bench, {1: HOT, 2: WARM, 3: 1 / 3}, {Lane.LOAD, Lane.MERGE})
    for number in range(20):
        register(bench, f"consumer-{number}")
    set_policy(bench, max_segments=3, strict_pulsar=True)
    pass_and_run(bench, {}, {Lane.CONSUMER})
    set_policy(bench, merge_cooldown_seconds=0, merge_window_seconds=60)
    bench.execute("DELETE FROM cleave.consumer")
    pass_and_run(bench, {one.segment_id: COLD for one in bench.layout.active})
    bench.execute(
        "UPDATE cleave.topic SET policy = '{\"max_segments\": 0}', row_version = row_version + 1"
    )  # by hand: no command would
    run(bench)
    return bench


def ids_of(bench: Bench) -> list[int]:
    return [row[0] for row in bench.rows("SELECT decision_id FROM cleave.decision ORDER BY 1")]


def test_every_decision_of_a_topics_life_is_made_again_the_same(cleave: CommandLine, life: Bench) -> None:
    before = cleave.rows()

    document = cleave.json("decisions", "replay", "--all", TOPIC)

    ids = ids_of(life)
    acts = {row[0] for row in life.rows("SELECT jsonb_path_query(decisions, '$.kind') FROM cleave.decision")}
    assert acts == {"split", "rebucket", "merge"}
    assert len(ids) == 5
    assert (document["replayed"], document["same"], document["differing"]) == (len(ids), len(ids), [])
    assert (document["code_versions"], document["replayed_by"]) == ([CODE_VERSION], [CODE_VERSION])
    assert f"{len(ids)} decisions replayed, all with the same answer" in cleave.ok(
        "decisions", "replay", "--all", TOPIC
    )
    assert cleave.rows() == before


def test_one_decision_is_shown_with_what_it_said(cleave: CommandLine, life: Bench) -> None:
    [first, *_] = ids_of(life)

    document = cleave.json("decisions", "replay", str(first))
    said = cleave.ok("decisions", "replay", str(first))

    assert document["is_same"]
    assert [(act["kind"], act["segment_id"]) for act in document["decisions"]] == [("split", 1)]
    assert "the same answer, bit for bit" in said
    assert "lower-score" in said
    assert f"replayed by {CODE_VERSION}" in said


def test_a_changed_row_is_found_and_shown(cleave: CommandLine, life: Bench) -> None:
    """The act, a figure, and until when the answer holds."""
    first, second, *_, last = ids_of(life)
    life.execute(
        "UPDATE cleave.decision SET decisions = jsonb_set(decisions, '{0,segment_id}', '0') WHERE decision_id = :id",
        id=first,
    )
    life.execute(
        "UPDATE cleave.decision SET situation = replace(situation, '0.3333333333333333,', '5000,') WHERE decision_id = :id",
        id=second,
    )
    life.execute(
        "UPDATE cleave.decision SET valid_until = '2027-01-01T00:00:00.001Z' WHERE decision_id = :id", id=last
    )

    answer = cleave("decisions", "replay", "--all", TOPIC)
    one = cleave("decisions", "replay", str(first))
    document = cleave("decisions", "replay", str(first), "--json")

    assert (answer.code, one.code, document.code) == (1, 1, 1)
    assert "3 with another answer" in answer.out
    assert "now it holds until something changes" in answer.out
    rows = [line.split()[:3] for line in one.out.splitlines()]
    assert ["stored", "split", "0"] in rows
    assert ["replayed", "split", "1"] in rows
    assert ["both", "left", "alone"] in rows
    assert '"is_same": false' in document.out


def test_a_decision_of_another_version_says_so(cleave: CommandLine, life: Bench) -> None:
    first, second, *_ = ids_of(life)
    life.execute("UPDATE cleave.decision SET code_version = 'pip483-1'")
    life.execute("UPDATE cleave.decision SET refusals = '[]' WHERE decision_id = :id", id=second)
    by = f"replayed by {CODE_VERSION}, made by pip483-1"

    assert f"{by}: the same answer" in cleave.ok("decisions", "replay", str(first))
    answer = cleave("decisions", "replay", str(second))

    assert answer.code == 1
    assert f"{by}: another answer" in answer.out


def test_a_text_that_nobody_can_read_any_more_is_a_difference(cleave: CommandLine, life: Bench) -> None:
    [first, *_] = ids_of(life)
    life.execute("UPDATE cleave.decision SET situation = '{}' WHERE decision_id = :id", id=first)

    answer = cleave("decisions", "replay", str(first))

    assert answer.code == 1
    assert "its evaluation input cannot be read" in answer.out


def test_a_span_bounds_what_is_replayed(cleave: CommandLine, life: Bench) -> None:
    ids = ids_of(life)
    at = life.scalar("SELECT decided_at FROM cleave.decision WHERE decision_id = :id", id=ids[2]).isoformat()

    earlier = cleave.json("decisions", "replay", "--all", TOPIC, "--to", at)
    later = cleave.json("decisions", "replay", "--all", TOPIC, "--from", at)

    assert (earlier["replayed"], later["replayed"]) == (2, len(ids) - 2)
    assert cleave.json("decisions", "replay", "--all", TOPIC, "--to", "1h")["replayed"] == 0


@pytest.mark.usefixtures("life", "reader")
def test_a_reader_may_replay(cleave: CommandLine) -> None:
    assert cleave.json("decisions", "replay", "--all", TOPIC)["replayed"] > 0


def test_what_is_not_there_and_what_is_no_question_is_one_line(cleave: CommandLine, orders: str) -> None:
    assert "decision 99 is not in the decision log" in cleave.refused("decisions", "replay", "99")
    assert "--all TOPIC" in cleave.refused("decisions", "replay")
    assert "--all TOPIC" in cleave.refused("decisions", "replay", "1", "--all", orders)
    assert "need --all" in cleave.refused("decisions", "replay", "1", "--from", "1d")
    assert "does not exist" in cleave.refused("decisions", "replay", "--all", "acme/shop/none")
    assert "neither an instant" in cleave.refused("decisions", "replay", "--all", orders, "--from", "soon")
    assert "is empty" in cleave.refused("decisions", "replay", "--all", orders, "--from", "1d", "--to", "2d")


def test_one_row_is_found_by_an_index_of_each_day(life: Bench) -> None:
    with life.store.transaction() as tx:
        decision_log.ensure_partitions(tx, 1)
        tx.execute(text("SET LOCAL enable_seqscan = off"))  # a small table is read faster from end to end
        statement = text("EXPLAIN SELECT * FROM inspect.decision_inputs WHERE decision_id = 1")
        plan = "\n".join(tx.execute(statement).scalars())

    assert plan.count("Index Cond: (decision_id = 1)") == 3, plan  # today, tomorrow, and what has no day yet
