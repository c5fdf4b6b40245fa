"""One line a fact, with the ids of what it is about: what is logged of a real split, of a proposal and of a policy, and of nothing."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from structlog.testing import capture_logs

from benchmarks.fleet import insert_fleet
from controller.actions.perform import DryRunStore
from controller.domain.evaluator import ALL_LANES
from controller.services import autoscaler, policy_admin
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.passes import HOT, LOAD, report, run
from tests.support.waiting import wait_until

Lines = Sequence[MutableMapping[str, Any]]
STEPS = ["create-children", "set-fencing", "terminate-parents", "commit", "finish"]


def named(lines: Lines, event: str) -> list[MutableMapping[str, Any]]:
    return [line for line in lines if line["event"] == event]


def set_policy(bench: Bench, **parameters: object) -> None:
    policy_admin.change(bench.store, TOPIC, lambda before: {**before, **parameters}, actor="ann")


def test_a_split_is_told_from_its_decision_to_its_end(bench: Bench) -> None:
    bench.topic_with(segments=2)
    report(bench, {0: HOT})
    with capture_logs() as lines:
        result = run(bench, LOAD)
        [operation_id] = result.operation_ids
        bench.run_once(operation_id, runner_id="r1")

    [decided] = named(lines, "decided")
    assert decided == {
        "event": "decided",
        "log_level": "info",
        "module": "controller.services.autoscaler.batch_topic",
        "topic": TOPIC,
        "topic_id": bench.topic_id,
        "decision_id": result.outcomes[0].decision_id,
        "operation_id": operation_id,
        "decided_by": "tests",
        "lane": "load",
        "kind": "split",
        "segment_ids": [0],
        "reason": decided["reason"],
    }
    steps = named(lines, "operation step")
    assert [line["step"] for line in steps] == STEPS
    [ended] = named(lines, "operation ended")
    for line in (*steps, ended):
        told = {name: line[name] for name in ("operation_id", "topic", "kind", "runner")}
        assert told == {"operation_id": operation_id, "topic": TOPIC, "kind": "split", "runner": "r1"}
        assert line["duration_seconds"] >= 0
    assert (ended["state"], ended["origin"], ended["epoch"]) == ("done", "auto", 1)
    assert len(lines) == 1 + len(steps) + 1, "nothing is said twice"


def test_the_time_of_an_abort_is_told_with_that_of_its_last_step(bench: Bench) -> None:
    bench.topic_with()
    operation_id = bench.intend(splitting(0)).operation.operation_id
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    instant = "SELECT extract(epoch FROM clock_timestamp())"

    def a_moment_passes(checkpoint: str) -> None:
        if checkpoint == "finish-abort:before":
            reached = bench.scalar(instant)
            wait_until(lambda: bench.scalar(instant) > float(reached) + 0.002, message="a later time")

    with capture_logs() as lines:
        bench.run_once(operation_id, checkpoint=a_moment_passes)

    steps = named(lines, "operation step")
    assert [line["step"] for line in steps] == ["abort", "finish-abort"]
    [ended] = named(lines, "operation ended")
    assert ended["duration_seconds"] >= steps[-1]["duration_seconds"] > 0


def test_where_nothing_is_to_be_done_nothing_is_said(bench: Bench) -> None:
    bench.topic_with(segments=2)
    report(bench, {0: HOT})
    with capture_logs() as lines:
        run(bench, LOAD, dry_run=True, topic_ids=[bench.topic_id])
    assert lines == []

    [operation_id] = run(bench, LOAD).operation_ids
    bench.drive(operation_id)
    run(bench, LOAD)
    with capture_logs() as lines:
        run(bench, LOAD)
        bench.run_once(operation_id)
    assert lines == []


def test_topics_of_a_plane_that_is_not_configured_are_one_line_a_pass_and_plane(bench: Bench) -> None:
    bench.store.in_transaction(insert_fleet, 5, 1, rate=HOT)
    topic_ids = [topic_id for (topic_id,) in bench.rows("SELECT topic_id FROM cleave.topic ORDER BY 1")]
    bench.execute(
        "UPDATE cleave.topic SET data_plane = 'paper', row_version = row_version + 1 WHERE topic_id < :id",
        id=topic_ids[2],
    )
    with capture_logs() as lines:
        result = autoscaler.run_pass(
            bench.store, {}, ALL_LANES, decided_by="tests", limit=100, batch_topics=1
        )

    assert result.evaluated == 0
    assert sorted(result.still_dirty) == topic_ids
    event = "data plane not configured here: its topics are not evaluated"
    told = [(line["event"], line["data_plane"], line["topics"], line["log_level"]) for line in lines]
    assert sorted(told) == [(event, "embedded", 3, "warning"), (event, "paper", 2, "warning")]
    examples = {line["data_plane"]: line["topic_id"] for line in lines}
    assert examples["paper"] in topic_ids[:2]
    assert examples["embedded"] in topic_ids[2:]


def test_what_a_person_is_asked_is_told_once(bench: Bench) -> None:
    bench.topic_with(segments=2)
    set_policy(bench, approval_min_segments=2)
    report(bench, {0: HOT})
    with capture_logs() as lines:
        result = run(bench, LOAD)
        run(bench, LOAD)

    [line] = lines
    assert result.operation_ids == ()
    assert {name: line[name] for name in ("event", "topic", "decision_id", "kind", "segment_ids")} == {
        "event": "approval proposed",
        "topic": TOPIC,
        "decision_id": result.outcomes[0].decision_id,
        "kind": "split",
        "segment_ids": [0],
    }


def test_a_policy_that_is_set_is_told_and_one_that_is_only_tried_is_not(bench: Bench) -> None:
    bench.topic_with()
    rehearsal = DryRunStore(bench.url)
    with capture_logs() as lines:
        policy_admin.change(rehearsal, "cluster", lambda now: {**now, "max_segments": 9}, actor="ann")
        set_policy(bench, max_segments=8)
        set_policy(bench, max_segments=8)
    rehearsal.dispose()

    [line] = lines
    assert (line["event"], line["level"], line["actor"], line["parameters"]) == (
        "policy set",
        TOPIC,
        "ann",
        ["max_segments"],
    )
