"""Topics that nothing may act on: before their logs were compared with the journal, and while the logs are ahead of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from controller.dataplane.base import LogReport
from controller.domain.errors import CleaveError, DataPlaneUnavailable, LostRace, TopicHeld
from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin
from controller.domain.operation import OperationState
from controller.domain.reshape import plan_split
from controller.domain.segment import segment_descriptor
from controller.services.consumer_sessions.requests import Register
from controller.services.consumer_sessions.settlement import ConnectionState, settle
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.services.garbage_collector import collect
from controller.services.reconciler import (
    FindingKind,
    reconcile,
    reconcile_topics,
    recover,
    verifier,
    verify_topics,
)
from controller.services.reconciler.verifier import Verifier
from controller.services.segment_admin import splitting
from controller.store.journal import claims, reshape_intents, topic_intents
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.postgres.engine import Store
from controller.store.shards import Shards
from controller.store.topics import backing_logs, drains, held_topics, recovered_layout, topics
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.integration.services.test_older_journal import shape
from tests.support.bench import Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.older_journal import Backups, maintain, unread_by_log

HALVES = {7: HashRange(0, 0x7FFF), 8: HashRange(0x8000, 0xFFFF)}
WHOLE = {7: HashRange(0, 0xFFFF)}


def lost_logs(
    bench: Bench, ranges: dict[int, HashRange], *parents: int, messages: int, closed: int = 0
) -> list[str]:
    """Logs of an operation that the journal does not have, by ids; the parent `closed` is closed."""
    found = []
    for segment_id, hash_range in ranges.items():
        log = bench.plane.backing_topic(bench.topic_name, segment_descriptor(hash_range, segment_id))
        bench.plane.create_segment(log, ["billing"], LogOrigin("lost", 1, parents, ()))
        if messages:
            bench.append(log, messages)
        found.append(log)
    bench.plane.terminate_segment(bench.log_of(closed))
    return found


def doubt(bench: Bench) -> None:
    """As a restart of the database does."""
    bench.store.in_transaction(held_topics.doubt, [bench.topic_id])


def is_verified(bench: Bench) -> bool:
    return bench.store.in_transaction(held_topics.topics_that_may_not_act, [bench.topic_id]) == []


def held_reason(bench: Bench) -> str | None:
    return bench.store.in_transaction(held_topics.held_reason, bench.topic_id)


def kinds(bench: Bench) -> list[FindingKind]:
    return [one.kind for one in reconcile(bench.store, bench.planes, bench.topic_id)]


# Nothing acts before the comparison.


def test_nothing_is_collected_and_no_prune_is_intended_before_the_comparison(bench: Bench) -> None:
    bench.topic_with()
    bench.reshape(splitting(0))
    doubt(bench)

    report = collect(bench.store, bench.planes, retention_minutes=0)

    assert (report.segments, report.kept) == ({}, [])
    with bench.store.transaction() as tx, pytest.raises(TopicHeld):
        topic_intents.intend_prune(tx, bench.topic_id, [0], bench.request())
    assert verify_topics(bench.store, bench.planes) == (1, 1)
    assert len(collect(bench.store, bench.planes, retention_minutes=0).operation_ids) == 1


def test_what_was_planned_under_another_database_is_not_written(bench: Bench) -> None:
    """The standby is promoted between the look and the intent; the row of the topic is the same there."""
    topic_id = bench.topic_with()
    view = bench.store.in_transaction(reshape_intents.look, topic_id, "split")
    bench.execute(
        "CREATE OR REPLACE FUNCTION cleave.database_identity() RETURNS text LANGUAGE sql STABLE AS $$ SELECT 'promoted' $$"
    )

    draft = ReshapeDraft(view, plan_split(view.layout, 0), bench.request("split"), bench.plane.backing_topic)
    with pytest.raises(LostRace), bench.store.transaction() as tx:
        reshape_intents.intend(tx, draft)


@pytest.mark.parametrize(
    "meanwhile",
    [
        "CREATE OR REPLACE FUNCTION cleave.database_identity() RETURNS text LANGUAGE sql STABLE AS $$ SELECT 'promoted' $$",
        "UPDATE cleave.topic SET verified_under = NULL, row_version = row_version + 1",
    ],
    ids=["the standby is promoted", "a log of the topic is doubted"],
)
def test_a_comparison_with_rows_that_have_changed_since_verifies_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    bench.topic_with()
    describe = bench.runner_plane.describe_logs

    def described(logs: Sequence[str]) -> Mapping[str, LogReport]:
        reports = describe(logs)
        monkeypatch.setattr(bench.runner_plane, "describe_logs", describe)
        bench.execute(meanwhile)
        return reports

    monkeypatch.setattr(bench.runner_plane, "describe_logs", described)
    assert reconcile_topics(bench.store, bench.planes) == ([], None)
    assert not is_verified(bench)

    assert verify_topics(bench.store, bench.planes) == (1, 1)


def test_no_session_begins_before_the_comparison_and_those_begun_go_on(bench: Bench) -> None:
    key = SubscriptionKey(bench.topic_with(), "billing")

    def refusal(consumer: str) -> CleaveError | None:
        request = Register(key=key, consumer=consumer, incarnation="1")
        return bench.store.in_transaction(
            settle, key, [request], ConsumerTiming(10.0), ConnectionState((), {})
        ).refused.get(0)

    assert refusal("old") is None
    doubt(bench)

    assert isinstance(refusal("new"), TopicHeld)
    assert refusal("old") is None


def test_a_dry_run_verifies_nothing(bench: Bench) -> None:
    bench.topic_with()
    doubt(bench)

    assert reconcile_topics(bench.store, bench.planes, dry_run=True) == ([], None)

    assert not is_verified(bench)


def test_each_comparison_after_a_restore_raises_the_generations_anew(bench: Bench, backups: Backups) -> None:
    """One backup may be restored twice, and its leaders were followed after the first time."""
    bench.topic_with()
    first, second = backups.take(), backups.take()
    generations = []
    for backup in (first, second):
        backups.restore(backup)
        verify_topics(bench.store, bench.planes)
        generations.append(bench.scalar("SELECT generation FROM cleave.subscription"))

    assert generations[0] < generations[1]


# Evidence that the logs are ahead.


def test_a_dry_run_recovers_nothing(bench: Bench) -> None:
    bench.topic_with()
    lost_logs(bench, HALVES, 0, messages=1)
    epoch = bench.layout.epoch

    [found] = reconcile(bench.store, bench.planes, bench.topic_id, dry_run=True)

    assert (found.kind, found.error) == (FindingKind.LOGS_AHEAD, None)
    assert (bench.layout.epoch, held_reason(bench)) == (epoch, None)


def test_no_id_in_the_name_of_a_log_is_given_out_after_a_recovery(bench: Bench) -> None:
    """A log without a record of its creation has its id all the same."""
    bench.topic_with()
    [log, _] = lost_logs(bench, HALVES, 0, messages=1)
    bench.plane.create_segment(log.replace("0000-7fff-7", "0000-7fff-44"), [])

    reconcile(bench.store, bench.planes, bench.topic_id)

    assert [i for i, _, _ in shape(bench)] == [7, 8]
    assert bench.layout.next_segment_id == 45


def test_the_log_of_a_pruned_segment_is_no_evidence(bench: Bench) -> None:
    bench.topic_with()
    bench.publish(0)
    bench.reshape(splitting(0))
    bench.plane.skip_all(bench.log_of(0), "billing")
    [prune] = collect(bench.store, bench.planes, retention_minutes=0).operation_ids
    bench.drive(prune)
    assert len(bench.undeleted_logs()) == 1

    assert kinds(bench) == []
    doubt(bench)
    assert kinds(bench) == []
    assert is_verified(bench)


def test_the_children_of_an_operation_behind_its_fence_are_its_runners_business(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.FENCED)
    bench.append(operation.children[0].backing_topic)
    doubt(bench)

    assert kinds(bench) == []
    assert bench.operation(operation.operation_id).state is OperationState.FENCED
    assert bench.drive(operation.operation_id).state is OperationState.DONE


def test_children_before_their_fence_that_nobody_used_are_no_evidence(bench: Bench) -> None:
    """Somebody closed the parent by hand."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.PREPARED)
    bench.plane.terminate_segment(bench.log_of(0))
    doubt(bench)

    assert kinds(bench) == []
    assert bench.operation(operation.operation_id).state is OperationState.PREPARED


def test_children_that_are_on_their_way_out_and_unused_are_no_evidence(bench: Bench) -> None:
    """Somebody closed the parent by hand after its split was given up."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.PREPARED)
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    assert bench.drive(operation.operation_id).state is OperationState.ABORTED
    bench.plane.terminate_segment(bench.log_of(0))
    doubt(bench)

    assert kinds(bench) == [FindingKind.ACTIVE_TERMINATED]


def test_an_operation_that_was_given_up_before_the_comparison_has_taken_effect(
    bench: Bench, backups: Backups
) -> None:
    """Its children wait for their deletion, full of messages that nobody has read."""
    bench.topic_with()
    bench.publish(0)
    operation = bench.intend(splitting(0)).operation
    backup = backups.take()
    bench.drive(operation.operation_id)
    bench.publish(1, 5)
    present, unread = shape(bench), unread_by_log(bench)

    backups.restore(backup)
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    assert bench.drive(operation.operation_id).state is OperationState.ABORTED
    verify_topics(bench.store, bench.planes)
    kept = "SELECT count(*) FROM cleave.deletion_entry WHERE kept_because LIKE '%recovered layout'"
    assert bench.scalar(kept) == 2
    maintain(bench)

    assert (shape(bench), unread_by_log(bench)) == (present, unread)
    bench.check_laws()


@pytest.mark.parametrize("state", [OperationState.INTENDED, OperationState.PREPARED])
def test_one_used_child_of_an_operation_in_the_backup_proves_the_others(
    bench: Bench, backups: Backups, state: OperationState
) -> None:
    """No message went to the other child in the lost time."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, state)
    backup = backups.take()
    bench.drive(operation.operation_id)
    bench.publish(1, 5)
    present = shape(bench)

    backups.restore(backup)
    assert verify_topics(bench.store, bench.planes) == (1, 1)

    assert shape(bench) == present
    assert bench.operation(operation.operation_id).state is OperationState.DONE


def test_a_topic_that_cannot_be_compared_keeps_the_verifier_from_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier, "verify_topics", partial(verify_topics, limit=1))
    bench.create()
    monkeypatch.setattr(bench, "topic_name", "topic://acme/shop/second")
    bench.create()
    topic_ids = [
        topic_id for (topic_id,) in bench.rows("SELECT topic_id FROM cleave.topic ORDER BY topic_id")
    ]
    with bench.store.transaction() as tx:
        held_topics.doubt(tx, topic_ids)
        silent = backing_logs.read_expected_logs(tx, topic_ids)[topic_ids[0]].names
    describe = bench.runner_plane.describe_logs
    monkeypatch.setattr(
        bench.runner_plane, "describe_logs", lambda logs: {} if silent & {*logs} else describe(logs)
    )
    rounds = Verifier(bench.store, bench.planes, lambda: Shards.of(1, [0]), lambda: None)

    pauses = [rounds._paced_round() for _ in range(5)]

    assert bench.store.in_transaction(held_topics.topics_that_may_not_act, topic_ids) == topic_ids[:1]
    assert pauses == [0.0, 0.0, 2 * verifier.INTERVAL_SECONDS, 0.0, 4 * verifier.INTERVAL_SECONDS]


# Held.


def test_a_claimed_operation_holds_the_topic_until_its_claim_is_over(bench: Bench) -> None:
    """Its runner may call the data plane at any moment."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    assert bench.store.in_transaction(
        claims.claim,
        runner="other",
        lease_seconds=600.0,
        call_timeout_seconds=bench.call_timeout_seconds,
        operation_id=operation.operation_id,
    )
    lost_logs(bench, HALVES, 0, messages=2)

    [found] = reconcile(bench.store, bench.planes, bench.topic_id)
    assert "still claimed by other" in (found.error or "")
    assert "ahead of the journal" in (held_reason(bench) or "")
    assert "still claimed by other" in (held_reason(bench) or "")
    assert [i for i, _, _ in shape(bench)] == [0]

    bench.execute(
        "UPDATE cleave.operation SET claim_expires_at = clock_timestamp() - interval '1 hour', row_version = row_version + 1"
        " WHERE claimed_by IS NOT NULL"
    )
    assert verify_topics(bench.store, bench.planes) == (1, 1)
    assert [i for i, _, _ in shape(bench)] == [7, 8]
    assert bench.operation(operation.operation_id).state is OperationState.ABORTED
    assert held_reason(bench) is None


def test_a_claim_is_over_when_no_call_of_its_can_be_under_way(bench: Bench) -> None:
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    with bench.store.transaction() as tx:
        claims.claim(
            tx,
            runner="other",
            lease_seconds=0.0,
            call_timeout_seconds=600.0,
            operation_id=operation.operation_id,
        )
        row = topics.get_topic(tx, bench.topic_id)

        assert "still claimed by other" in (
            recovered_layout.why_not_idle(tx, row, call_timeout_seconds=600.0) or ""
        )
        assert recovered_layout.why_not_idle(tx, row, call_timeout_seconds=0.0) is None


def test_a_topic_is_held_until_the_fence_that_stopped_half_way_is_complete(bench: Bench) -> None:
    bench.topic_with(segments=2)
    lost_logs(bench, WHOLE, 0, 1, messages=0)
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.REFUSED, "terminate_segments"))

    with pytest.raises(DataPlaneUnavailable):
        reconcile(bench.store, {"embedded": plane.as_data_plane()}, bench.topic_id)
    assert "ahead of the journal" in (held_reason(bench) or "")

    assert verify_topics(bench.store, bench.planes) == (1, 1)
    assert shape(bench) == [(7, "0000-ffff", (0, 1))]


def test_a_topic_is_held_with_the_log_that_another_session_keeps_open_as_the_reason(bench: Bench) -> None:
    """It is logged once, however often the comparison is repeated."""
    bench.topic_with(segments=2)
    lost_logs(bench, WHOLE, 0, 1, messages=0)
    writer, open_log = Store(bench.url), bench.log_of(1)

    with capture_logs() as lines, writer.transaction() as tx:
        tx.execute(text("SELECT FROM embedded.log WHERE name = :log FOR UPDATE"), {"log": open_log})
        [found], again = (reconcile(bench.store, bench.planes, bench.topic_id) for _ in range(2))
    writer.dispose()

    assert again == (found,)
    assert open_log in (found.error or "")
    reason = held_reason(bench) or ""
    assert reason == f"{found.reason}; {found.error}"
    assert [line["reason"] for line in lines if line["event"] == "topic held"] == [reason]
    assert verify_topics(bench.store, bench.planes) == (1, 1)
    assert shape(bench) == [(7, "0000-ffff", (0, 1))]


def test_a_held_topic_goes_on_once_its_evidence_is_gone(bench: Bench) -> None:
    """Nothing differs then, so the look at many topics would pass it over."""
    bench.topic_with(segments=2)
    logs = lost_logs(bench, HALVES, 1, messages=1)
    bench.plane.delete_segment(bench.log_of(0))
    bench.create_again(bench.log_of(0), ["billing"])
    reconcile(bench.store, bench.planes, bench.topic_id)
    assert held_reason(bench) is not None
    for log in logs:
        bench.plane.delete_segment(log)

    assert verify_topics(bench.store, bench.planes) == (1, 1)
    assert held_reason(bench) is None


# Records of what was read.


def read_record(bench: Bench) -> None:
    """A segment that is recorded as read to its end, of which the broker has unread messages."""
    bench.topic_with()
    bench.publish(0)
    bench.reshape(splitting(0))
    bench.store.in_transaction(drains.mark_drained, bench.topic_id, "billing", [0])


def test_a_record_outlives_acknowledgements_that_a_broker_lost(bench: Bench) -> None:
    read_record(bench)

    assert kinds(bench) == []


def test_a_recovery_withdraws_records_that_the_logs_contradict(bench: Bench) -> None:
    read_record(bench)

    found = recover(bench.store, bench.planes, bench.topic_name, actor="ann")

    assert [one.kind for one in found.findings] == [FindingKind.UNREAD_AGAIN]
    assert bench.store.in_transaction(drains.drained, bench.topic_id, "billing") == set()
