"""The autoscaler: what is dirty becomes ledger rows and intents, once, and nothing else is touched."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from benchmarks.fleet import insert_fleet
from controller.domain.decision import Lane, RefusalReason
from controller.domain.evaluation_input import Capabilities, EvaluationInput
from controller.domain.evaluator import ALL_LANES, decide
from controller.domain.operation import OperationKind, OperationState, Origin
from controller.domain.policy import PolicyOverride
from controller.services import autoscaler
from controller.services.autoscaler import PassResult
from controller.store.decisions import decision_log
from controller.store.postgres.clock import database_now
from controller.store.shards import Shards
from controller.store.topics import policies
from tests.support.bench import Bench
from tests.support.passes import COLD, HOT, LOAD, WARM, decisions, owed, register, report, run


def test_a_hot_segment_is_split_and_the_split_knows_its_decision(bench: Bench) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})

    result = run(bench)

    [outcome] = result.outcomes
    [operation_id] = result.operation_ids
    operation = bench.operation(operation_id)
    assert (operation.kind, operation.parent_ids, operation.state) == (
        OperationKind.SPLIT,
        (0,),
        OperationState.INTENDED,
    )
    assert (operation.origin, operation.actor, operation.reason) == (Origin.AUTO, "tests", "msgRateIn")
    [row] = decisions(bench)
    assert row.decision_id == outcome.decision_id
    linked = "SELECT operation_id FROM cleave.operation WHERE decision_id = :id"
    assert bench.scalar(linked, id=row.decision_id) == operation_id
    assert bench.scalar(
        "SELECT operations FROM inspect.decisions WHERE decision_id = :id", id=row.decision_id
    ) == [operation_id]

    bench.drive(operation_id)

    assert [segment.segment_id for segment in bench.layout.active] == [2, 3, 1]
    bench.check_laws()


def test_two_cold_neighbours_are_merged_and_consumers_get_segments(bench: Bench) -> None:
    bench.topic_with(2)
    report(bench, {0: COLD, 1: COLD}, cold_for=timedelta(hours=1))

    [merge] = run(bench).operation_ids
    bench.drive(merge)

    assert bench.operation(merge).kind is OperationKind.MERGE
    report(bench, {2: WARM})
    for name in "ab":
        register(bench, name)

    [split] = run(bench, {Lane.CONSUMER}).operation_ids

    assert (bench.operation(split).kind, bench.operation(split).reason) == (
        OperationKind.SPLIT,
        "consumer-count",
    )


def test_a_second_pass_finds_nothing_to_do(bench: Bench) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})
    run(bench)

    assert run(bench) == PassResult(0, (), ())
    assert not owed(bench)


def test_a_refusal_is_written_once_and_taken_back_once(bench: Bench) -> None:
    bench.topic_with(1)
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride(max_segments=1))
    told = []
    for rate in (HOT, HOT * 2, WARM, WARM * 1.5):
        report(bench, {0: rate})
        told.append(len(run(bench, LOAD).outcomes))

    assert told == [1, 0, 1, 0]
    taken_back, refused = decisions(bench)
    assert [refusal["reason"] for refusal in refused.refusals] == [RefusalReason.AT_MAX_SEGMENTS]
    assert (taken_back.refusals, taken_back.decisions) == ([], [])
    assert bench.scalar("SELECT count(*) FROM inspect.why_not") == 0


def test_a_refusal_that_lasts_is_written_again_when_its_row_has_expired(bench: Bench) -> None:
    """Also if another lane has a younger row, and only then."""
    bench.topic_with(1)
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride(max_segments=1))
    report(bench, {0: HOT})
    run(bench, LOAD)
    bench.execute("UPDATE cleave.decision SET decided_at = decided_at - interval '40 days'")
    bench.execute("""
        INSERT INTO cleave.decision (topic_id, epoch, input_version, lanes, decided_by, code_version, decisions, refusals, situation)
        SELECT topic_id, epoch, input_version, '{consumer}', decided_by, code_version, '[]', '[]', situation FROM cleave.decision
    """)

    told = []
    for _ in range(2):
        with bench.store.transaction() as tx:
            decision_log.drop_partitions(tx, database_now(tx) - timedelta(days=35))
            decision_log.repeat_lost_refusals(tx)
        told.append(len(run(bench, LOAD).outcomes))

    assert told == [1, 0]
    assert bench.rows("SELECT lane, reason FROM inspect.why_not") == [("load", "at-max-segments")]


def test_a_lane_not_asked_keeps_what_it_said(bench: Bench) -> None:
    bench.topic_with(1)

    assert len(run(bench, LOAD).outcomes) == 1
    assert run(bench, {Lane.CONSUMER, Lane.MERGE}).outcomes == ()

    bench.execute("UPDATE cleave.evaluation SET input_version = input_version + 1")

    assert run(bench).outcomes == ()
    [row] = decisions(bench)
    assert [refusal["reason"] for refusal in row.refusals] == [RefusalReason.NO_LOAD_RECORD]


def test_every_ledger_row_replays_to_what_was_done(bench: Bench) -> None:
    bench.topic_with(3)
    report(bench, {0: HOT, 1: HOT * 2, 2: COLD})
    run(bench)

    for row in decisions(bench):
        verdict = decide(EvaluationInput.from_json(row.situation), row.lanes)
        assert [act["segment_id"] for act in row.decisions] == [act.segment_id for act in verdict.decisions]  # type: ignore[union-attr]
        assert len(verdict.refusals) == len(row.refusals)


def test_after_an_abort_the_topic_is_left_alone_until_its_pause_ends(bench: Bench) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})
    [first] = run(bench).operation_ids
    bench.execute(
        "UPDATE cleave.operation SET deadline = clock_timestamp() WHERE operation_id = :id", id=first
    )
    assert bench.drive(first).state is OperationState.ABORTED

    assert run(bench) == PassResult(0, (), ())

    bench.execute("UPDATE cleave.evaluation SET not_before = clock_timestamp()")
    [second] = run(bench).operation_ids

    assert second != first
    assert bench.drive(second).state is OperationState.DONE


def test_a_topic_on_a_plane_that_is_not_configured_is_left_to_others(bench: Bench) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})

    result = autoscaler.run_pass(bench.store, {}, ALL_LANES, decided_by="tests", limit=10)

    assert result == PassResult(0, (), (bench.topic_id,))
    assert decisions(bench) == []
    # Those who have the plane need not wait for long.
    pause = "SELECT not_before BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 seconds' FROM cleave.evaluation"
    assert bench.scalar(pause) is True


def test_topics_not_live_are_passed_over_for_good(bench: Bench) -> None:
    bench.topic_with(1)
    bench.execute("UPDATE cleave.topic SET state = 'deleting', row_version = row_version + 1")

    assert run(bench) == PassResult(0, (), ())
    assert not owed(bench)


def test_a_dry_run_tells_what_would_happen_and_writes_nothing(bench: Bench) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})

    told = [run(bench, dry_run=True), run(bench, dry_run=True, topic_ids=[bench.topic_id])]

    for result in told:
        [outcome] = result.outcomes
        assert len(outcome.evaluation.decisions) == 1
        assert (outcome.decision_id, result.operation_ids) == (None, ())
    assert decisions(bench) == []
    assert bench.live_operations() == []
    assert len(run(bench).operation_ids) == 1
    assert run(bench, dry_run=True).evaluated == 0
    assert run(bench, dry_run=True, topic_ids=[bench.topic_id]).evaluated == 1


def test_a_dry_run_of_named_topics_keeps_to_the_limit_and_to_batches(bench: Bench) -> None:
    bench.store.in_transaction(insert_fleet, 5, 1, rate=HOT)
    topic_ids = [topic_id for (topic_id,) in bench.rows("SELECT topic_id FROM cleave.topic")]
    batches: list[Connection] = []

    limited = run(bench, dry_run=True, topic_ids=topic_ids, limit=3)
    whole = run(bench, dry_run=True, topic_ids=topic_ids, batch_topics=2, demand_right_to_act=batches.append)

    assert limited.evaluated == 3
    assert (whole.evaluated, len({outcome.topic_id for outcome in whole.outcomes})) == (5, 5)
    assert len(batches) == 3


def test_batches_cover_a_fleet_up_to_the_limit_and_shards_divide_it(bench: Bench) -> None:
    bench.store.in_transaction(insert_fleet, 10, 1, rate=HOT)

    first = run(bench, limit=3, batch_topics=2)
    odd = run(bench, batch_topics=2, shards=Shards.of(2, [1]))
    rest = run(bench, batch_topics=2)

    assert (first.evaluated, len(first.operation_ids)) == (3, 3)
    assert {outcome.topic_id % 2 for outcome in odd.outcomes} == {1}
    touched = [outcome.topic_id for result in (first, odd, rest) for outcome in result.outcomes]
    assert len(touched) == len(set(touched)) == 10


def test_a_batch_acts_on_few_topics_and_the_pass_on_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaler.batch, "ACTING_TOPICS", 2)
    bench.store.in_transaction(insert_fleet, 5, 1, rate=HOT)
    transactions = []

    result = run(bench, demand_right_to_act=transactions.append)

    assert (result.evaluated, len(result.operation_ids), result.still_dirty) == (5, 5, ())
    assert len(transactions) == 3  # 2 + 2 + 1 topics, and no more to look for


def test_several_acts_of_one_decision_are_several_operations(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebuckets come an act a segment; a data plane that can share buckets gets them."""
    monkeypatch.setattr(type(bench.plane), "capabilities", Capabilities(max_children=64, shared_buckets=True))
    bench.topic_with(2)
    report(bench, {0: 10.0, 1: 20.0})
    for name in "abcdefghij":
        register(bench, name)

    [outcome] = run(bench, {Lane.CONSUMER}).outcomes

    operations = [bench.operation(i) for i in outcome.operation_ids]
    assert [(operation.kind, operation.parent_ids) for operation in operations] == [
        (OperationKind.REBUCKET, (0,)),
        (OperationKind.REBUCKET, (1,)),
    ]
    for operation in operations:
        assert bench.drive(operation.operation_id).state is OperationState.DONE
    assert {segment.bucket_count for segment in bench.layout.active} == {8}
    bench.check_laws()


def test_the_controllers_role_is_all_a_pass_needs(bench: Bench) -> None:
    bench.topic_with(1)
    report(bench, {0: HOT})

    result = run(bench, demand_right_to_act=lambda tx: tx.execute(text("SET LOCAL ROLE cleave_controller")))

    assert len(result.operation_ids) == 1


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ('{"split_msg_rate_in": 1e400}', "split_msg_rate_in = 1000"),
        (f'{{"max_segments": {"9" * 5000}}}', "max_segments = '999"),
        ('{"merge_byte_rate_out": "slow"}', "merge_byte_rate_out = 'slow'; give a number"),
        ('{"merge_cooldown_seconds": {"s": 1}}', "give a whole number"),
        (f'{{"profile": {"[" * 2000}{"]" * 2000}}}', "nested too deeply"),
        ('{"a_parameter_of_tomorrow": 1}', "'a_parameter_of_tomorrow' cannot be set here"),
    ],
    ids=["too large", "5,000 digits", "no number", "an object", "nested deeply", "unknown"],
)
def test_a_policy_that_cannot_be_read_stops_its_own_topic_only(
    bench: Bench, document: str, says: str
) -> None:
    """A newer program or a hand wrote it, past every check."""
    bench.store.in_transaction(insert_fleet, 1, 1, rate=HOT)
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})
    other = bench.scalar("SELECT topic_id FROM cleave.topic WHERE topic_id <> :id", id=bench.topic_id)
    bench.execute(
        "UPDATE cleave.topic SET policy = CAST(:document AS jsonb), row_version = row_version + 1 WHERE topic_id = :id",
        id=bench.topic_id,
        document=document,
    )

    outcomes = {outcome.topic_id: outcome for outcome in run(bench).outcomes}

    assert len(outcomes[other].operation_ids) == 1
    assert outcomes[bench.topic_id].operation_ids == ()
    why = "SELECT DISTINCT metric FROM inspect.why_not WHERE topic_id = :id AND reason = 'invalid-policy'"
    told = bench.scalar(why, id=bench.topic_id)
    assert told.startswith("unreadable: topic's policy: ")
    assert says in told
