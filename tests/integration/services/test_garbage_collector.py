"""Collecting sealed segments: old enough, read to the end by everybody, ancestors first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from sqlalchemy import text

from controller.dataplane.base import LogReport
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.domain.errors import Conflict, DataPlaneUnavailable, InvalidInput, Retryable
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationKind, OperationState
from controller.domain.seek_target import EARLIEST
from controller.domain.segment import SegmentState
from controller.services import subscription_admin
from controller.services.garbage_collector import CollectionReport, collect, collect_segment
from controller.services.segment_admin import merging, splitting
from controller.store.topics import drains
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault

CHAIN = (
    """INSERT INTO cleave.segment (topic_id, segment_id, range_start, range_end, state, created_epoch, sealed_epoch,
                                   created_at, sealed_at, backing_topic)
       SELECT :topic_id, i, 0, 65535, 'SEALED', 1, 1, now(), now(), 'chain-' || i FROM generate_series(101, :last) i""",
    """INSERT INTO cleave.segment_parent (topic_id, child_id, parent_id)
       SELECT :topic_id, i, CASE i WHEN 101 THEN 0 ELSE i - 1 END FROM generate_series(101, :last) i""",
)


def drain(bench: Bench, segment_id: int) -> None:
    """Have every subscription read the segment to its end."""
    for name in bench.plane.list_subscriptions(bench.log_of(segment_id)):
        bench.plane.skip_all(bench.log_of(segment_id), name)


def age(bench: Bench, segment_id: int, minutes: float) -> None:
    """Make it as if the segment had been sealed that long ago."""
    bench.execute(
        "UPDATE cleave.segment SET sealed_at = clock_timestamp() - :minutes * interval '1 minute'"
        " WHERE segment_id = :segment_id",
        segment_id=segment_id,
        minutes=minutes,
    )


def split_topic(bench: Bench, *, messages: int = 3, **options: Any) -> None:
    """Create the topic and split its segment, which has so many unread messages."""
    bench.topic_with(**options)
    if messages:
        bench.publish(0, messages)
    bench.reshape(splitting(0))


def collect_now(bench: Bench, retention_minutes: float = 0.0, *, dry_run: bool = False) -> CollectionReport:
    """One round."""
    return collect(bench.store, bench.planes, retention_minutes=retention_minutes, dry_run=dry_run)


def reasons(report: CollectionReport) -> dict[int | None, str]:
    """Why segments were kept."""
    return {kept.segment_id: kept.reason for kept in report.kept}


def test_a_drained_segment_past_its_retention_is_pruned_and_its_log_deleted(bench: Bench) -> None:
    split_topic(bench)
    log = bench.log_of(0)
    drain(bench, 0)

    report = collect_now(bench)

    assert report.segments == {TOPIC: (0,)}
    [operation_id] = report.operation_ids
    assert bench.drive(operation_id).kind is OperationKind.PRUNE
    bench.settle()
    bench.check_laws()
    assert sorted(bench.layout.segments) == [1, 2]
    assert log not in bench.plane.list_segments(TOPIC)


def test_unread_messages_keep_a_segment_however_old_it_is(bench: Bench) -> None:
    split_topic(bench, messages=2, subscriptions=("billing", "audit"))
    bench.plane.skip_all(bench.log_of(0), "audit")
    age(bench, 0, minutes=10_000)

    report = collect_now(bench)

    assert report.operation_ids == []
    assert reasons(report) == {0: "subscription billing has 2 unread message(s)"}


def test_a_cursor_that_an_application_made_itself_counts_like_a_recorded_one(bench: Bench) -> None:
    bench.topic_with()
    bench.plane.create_subscription(bench.log_of(0), "application-own")
    bench.publish(0)
    bench.reshape(splitting(0))
    bench.plane.skip_all(bench.log_of(0), "billing")

    assert "application-own" in reasons(collect_now(bench))[0]


@pytest.mark.parametrize(("age_minutes", "is_collected"), [(0.98, False), (1.02, True)])
def test_retention_is_counted_in_minutes_from_the_sealing(
    bench: Bench, age_minutes: float, is_collected: bool
) -> None:
    split_topic(bench, messages=0)
    age(bench, 0, age_minutes)

    assert bool(collect_now(bench, retention_minutes=1.0).segments) is is_collected


@pytest.mark.parametrize(
    ("setting", "topic_property", "is_collected"),
    [
        (-1.0, None, False),
        (-1.0, "0", True),
        (0.0, "-1", False),
        (0.0, "60", False),
        (60.0, "0.5", True),
        (60.0, "-999999999.999999", False),
        (60.0, "0.000001", True),
        (0.0, "999999999", False),
    ],
)
def test_a_topics_own_retention_goes_before_the_setting_and_negative_keeps_for_ever(
    bench: Bench, setting: float, topic_property: str | None, is_collected: bool
) -> None:
    properties = {} if topic_property is None else {"retention_minutes": topic_property}
    split_topic(bench, messages=0, properties=properties)
    age(bench, 0, minutes=1.0)

    assert bool(collect_now(bench, retention_minutes=setting).segments) is is_collected


def test_a_retention_that_nobody_can_read_keeps_for_ever(bench: Bench) -> None:
    """Requests are checked; a row changed by hand is not."""
    split_topic(bench, messages=0)
    bench.execute(
        "UPDATE cleave.topic SET properties = jsonb_build_object('retention_minutes', 'soon'), row_version = row_version + 1"
    )

    assert collect_now(bench).segments == {}


def test_a_segment_waits_for_its_ancestors_so_that_the_order_of_reading_stays(bench: Bench) -> None:
    split_topic(bench)
    bench.reshape(merging(1, 2))

    report = collect_now(bench)
    assert report.segments == {}
    assert reasons(report)[1] == "it waits for its ancestor(s) 0"

    drain(bench, 0)
    assert collect_now(bench).segments == {TOPIC: (0, 1, 2)}
    bench.settle()
    bench.check_laws()


def seal_chain(bench: Bench, length: int) -> None:
    """Add sealed segments with the ids from 101 on; 101 is a child of 0, and each other one of the one before."""
    with bench.store.transaction() as tx:
        tx.execute(text("SET LOCAL session_replication_role = replica"))  # without the checks of each row
        for statement in CHAIN:
            tx.execute(text(statement), {"topic_id": bench.topic_id, "last": 100 + length})


def test_the_reasons_of_a_long_history_do_not_grow_with_the_ancestors(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the search for them, which would walk through 4,500,000 ancestors."""
    split_topic(bench)
    seal_chain(bench, 3_000)
    found: list[frozenset[int]] = []
    ancestors_of = SegmentLayout.ancestors_of

    def noted(layout: SegmentLayout, parent_ids: Iterable[int]) -> frozenset[int]:
        found.append(ancestors_of(layout, parent_ids))
        return found[-1]

    monkeypatch.setattr(SegmentLayout, "ancestors_of", noted)
    kept = reasons(collect_now(bench, dry_run=True))
    assert sum(map(len, found)) <= 3_000

    assert kept.keys() == {0, *range(101, 3_101)}
    assert kept[101] == "it waits for its ancestor(s) 0"
    assert kept[103] == "it waits for its ancestor(s) 0, 101, 102"
    assert {kept[i] for i in range(104, 3_101)} == {"it waits for its ancestor(s) 0, 101, 102 and others"}


def test_a_log_deleted_by_hand_has_nothing_left_to_read(bench: Bench) -> None:
    split_topic(bench)
    bench.plane.delete_segment(bench.log_of(0))

    assert collect_now(bench).segments == {TOPIC: (0,)}


def test_nothing_is_collected_where_no_log_at_all_is_there(bench: Bench) -> None:
    """An address that names another cluster looks like this, and its unread messages are elsewhere."""
    split_topic(bench, messages=2)
    for segment_id in bench.layout.segments:
        bench.plane.delete_segment(bench.log_of(segment_id))

    report = collect_now(bench)

    assert (report.segments, report.operation_ids) == ({}, [])
    assert "none of the 3 logs" in reasons(report)[None]
    assert bench.scalar("SELECT count(*) FROM cleave.segment_drain") == 0
    with pytest.raises(Retryable, match="check that the address names the cluster"):
        collect_segment(bench.store, bench.planes, TOPIC, 0, bench.request())


def test_a_log_that_is_out_of_sight_for_a_moment_keeps_its_segment(bench: Bench) -> None:
    """A broker says so of a log that is on its way to another one."""
    split_topic(bench)
    log, plane = bench.log_of(0), FaultyDataPlane(bench.runner_plane)
    bench.plane.delete_segment(log)

    def be_back(call: str, _number: int) -> None:
        if call == "segment_state":
            bench.create_again(log, ["billing"])

    plane.before_call = be_back
    report = collect(bench.store, {"embedded": plane.as_data_plane()}, retention_minutes=0)

    assert (report.segments, reasons(report)) == ({}, {0: "its log could not be seen for a moment"})


def test_a_log_that_does_not_answer_keeps_its_segment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    split_topic(bench, messages=0)
    silent, describing = bench.log_of(0), EmbeddedDataPlane.describe_logs

    def describe_logs(plane: EmbeddedDataPlane, logs: Sequence[str]) -> dict[str, LogReport]:
        return {name: report for name, report in describing(plane, logs).items() if name != silent}

    monkeypatch.setattr(EmbeddedDataPlane, "describe_logs", describe_logs)

    assert reasons(collect_now(bench)) == {0: "its log did not answer"}


def test_a_missing_cursor_keeps_the_segment_since_nobody_knows_what_was_read(bench: Bench) -> None:
    split_topic(bench)
    bench.plane.delete_subscription(bench.log_of(0), "billing")

    assert "cursor of subscription billing is missing" in reasons(collect_now(bench))[0]


@pytest.mark.parametrize("from_latest", [False, True])
def test_a_subscription_made_after_the_sealing_keeps_the_segment_if_it_reads_it(
    bench: Bench, from_latest: bool
) -> None:
    split_topic(bench, subscriptions=())
    created = subscription_admin.create_subscription(
        bench.store, TOPIC, "late", bench.request(), from_latest=from_latest
    )
    bench.finish(created)

    assert collect_now(bench).segments == ({TOPIC: (0,)} if from_latest else {})


def test_a_checkpoint_subscription_keeps_everything(bench: Bench) -> None:
    split_topic(bench, messages=0, subscriptions=())
    bench.finish(
        subscription_admin.create_subscription(
            bench.store, TOPIC, "replay", bench.request(), kind=SubscriptionKind.CHECKPOINT
        )
    )

    assert "checkpoint" in reasons(collect_now(bench))[None]


def collect_with_looks(bench: Bench, before_look: Callable[[int], object]) -> CollectionReport:
    """One round. `before_look` is called before each description of the logs, with its number; the first look is number 1."""
    plane, looks = FaultyDataPlane(bench.runner_plane), itertools.count(1)

    def before_call(call: str, _number: int) -> None:
        if call == "describe_logs":
            before_look(next(looks))

    plane.before_call = before_call
    return collect(bench.store, {"embedded": plane.as_data_plane()}, retention_minutes=0)


def collect_around_seek(bench: Bench, *segment_ids: int, fails: bool = False) -> CollectionReport:
    """One round. After its first look, which finds nothing unread, a seek moves the cursors of `billing` in these segments back. `fails`:
    the second look gets no answer.
    """

    def seek_back(look: int) -> None:
        if look == 2:
            for segment_id in segment_ids:
                bench.plane.seek(bench.log_of(segment_id), "billing", 0)
            if fails:
                raise DataPlaneUnavailable("no broker answers")

    return collect_with_looks(bench, seek_back)


def test_a_seek_between_the_look_and_the_mark_is_seen_and_the_mark_taken_back(bench: Bench) -> None:
    split_topic(bench)
    drain(bench, 0)
    report = collect_around_seek(bench, 0)

    assert report.operation_ids == []
    assert report.segments == {}
    assert reasons(report) == {0: "subscription billing has 3 unread message(s)"}
    assert bench.store.in_transaction(drains.drained, bench.topic_id, "billing") == set()


def test_only_segments_that_the_second_look_confirms_are_reported_as_pruned(bench: Bench) -> None:
    bench.topic_with()
    for segment_id in (0, 1, 2):
        bench.publish(segment_id)
        bench.reshape(splitting(segment_id))
        drain(bench, segment_id)
    report = collect_around_seek(bench, 1)

    assert report.segments == {TOPIC: (0,)}
    assert reasons(report) == {
        1: "subscription billing has 3 unread message(s)",
        2: "it waits for segment 1, which is kept",
    }


@pytest.mark.parametrize("fails", [False, True], ids=["a seek is seen", "the second look fails"])
def test_no_mark_stays_that_the_second_look_has_not_confirmed(bench: Bench, *, fails: bool) -> None:
    """The seek moves every cursor, and removed the marks that there were. A mark made after it would let unread messages be pruned."""
    bench.topic_with(segments=2)
    for segment_id in (0, 1):
        bench.publish(segment_id)
        bench.reshape(splitting(segment_id))
        drain(bench, segment_id)
    collect_around_seek(bench, 0, 1, fails=fails)

    assert bench.store.in_transaction(drains.drained, bench.topic_id, "billing") == set()


def test_a_segment_waits_until_everybody_can_go_on_in_its_children(bench: Bench) -> None:
    bench.topic_with(subscriptions=("billing",))
    bench.plane.create_subscription(bench.log_of(0), "application-own")
    bench.reshape(splitting(0))
    for name, child in (("billing", 2), ("application-own", 1)):
        bench.plane.delete_subscription(bench.log_of(child), name)
        assert reasons(collect_now(bench)) == {
            0: f"subscription {name} has no position in its child {child} yet"
        }
        bench.plane.create_subscription(bench.log_of(child), name)

    assert collect_now(bench).segments == {TOPIC: (0,)}


def test_a_log_put_back_by_the_reconciler_lets_its_parent_go(bench: Bench) -> None:
    """Restore: until the child's log and its cursors are there again, the parent stays."""
    split_topic(bench, messages=0)
    bench.plane.delete_segment(bench.log_of(1))
    assert "no position in its child 1" in reasons(collect_now(bench))[0]

    bench.settle()

    assert collect_now(bench).segments == {TOPIC: (0,)}


def test_acknowledgements_that_a_broker_forgot_are_written_off(bench: Bench) -> None:
    split_topic(bench)
    bench.store.in_transaction(drains.mark_drained, bench.topic_id, "billing", [0])

    assert collect_now(bench).segments == {TOPIC: (0,)}
    bench.settle()
    assert sorted(bench.layout.segments) == [1, 2]


def test_what_readers_have_marked_is_never_taken_back(bench: Bench) -> None:
    split_topic(bench, subscriptions=("billing", "audit"))
    drain(bench, 0)
    bench.store.in_transaction(drains.mark_drained, bench.topic_id, "billing", [0])

    def seek_back(look: int) -> None:
        if look == 2:  # the first look has found nothing unread
            for name in ("billing", "audit"):
                bench.plane.seek(bench.log_of(0), name, 0)

    report = collect_with_looks(bench, seek_back)

    assert report.operation_ids == []
    with bench.store.transaction() as tx:
        marked = [drains.drained(tx, bench.topic_id, name) for name in ("billing", "audit")]
    assert marked == [{0}, set()]


def test_a_seek_takes_back_what_was_marked_before_the_collector_looked(bench: Bench) -> None:
    split_topic(bench)
    drain(bench, 0)
    bench.store.in_transaction(drains.mark_drained, bench.topic_id, "billing", [0])

    def seek_back(look: int) -> None:
        if look == 1:
            bench.finish(
                subscription_admin.seek_subscription(
                    bench.store, TOPIC, "billing", EARLIEST, bench.request(), release_seconds=1.0
                )
            )

    report = collect_with_looks(bench, seek_back)

    assert report.operation_ids == []
    assert "not drained by billing" in reasons(report)[None]
    assert bench.unread("billing") == 3


def test_what_was_taken_back_from_a_prune_is_collected_once_it_is_read_again(bench: Bench) -> None:
    """Another collector saw the seek and took the mark back; the prune that was intended had nothing left to do."""
    split_topic(bench, messages=0)
    [first] = collect_now(bench).operation_ids
    bench.store.in_transaction(drains.undrain, bench.topic_id, "billing", [0])
    assert bench.drive(first).epoch is None

    [second] = collect_now(bench).operation_ids

    assert bench.drive(second).epoch == 2
    assert sorted(bench.layout.segments) == [1, 2]


def test_a_dry_run_names_what_it_would_collect_and_writes_nothing(bench: Bench) -> None:
    split_topic(bench, messages=0)

    assert collect_now(bench, dry_run=True).segments == {TOPIC: (0,)}
    assert bench.live_operations() == []


def test_asking_twice_collects_once(bench: Bench) -> None:
    split_topic(bench, messages=0)

    first, second = collect_now(bench), collect_now(bench)

    assert (len(first.operation_ids), second.operation_ids, second.kept) == (1, [], [])


def test_a_data_plane_that_does_not_answer_keeps_its_segments(bench: Bench) -> None:
    split_topic(bench, messages=0)
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.REFUSED))

    report = collect(bench.store, {"embedded": plane.as_data_plane()}, retention_minutes=0)

    assert "injected" in reasons(report)[None]
    assert bench.layout.segment(0).state is SegmentState.SEALED


def test_a_data_plane_that_is_not_configured_here_keeps_its_segments_with_the_reason(bench: Bench) -> None:
    split_topic(bench, messages=0)

    report = collect(bench.store, {}, retention_minutes=0)

    assert reasons(report) == {None: "data plane 'embedded' is not configured here; collect where it is"}
    assert bench.layout.segment(0).state is SegmentState.SEALED


def test_pruning_is_done_even_when_its_deadline_has_passed(bench: Bench) -> None:
    split_topic(bench, messages=0)
    [operation_id] = collect_now(bench).operation_ids
    bench.execute(
        "UPDATE cleave.operation SET deadline = clock_timestamp() - interval '1 hour', row_version = row_version + 1"
        " WHERE operation_id = :operation_id",
        operation_id=operation_id,
    )

    assert bench.drive(operation_id).state is OperationState.DONE


@pytest.mark.parametrize("limit", [0, -1])
def test_a_round_of_no_topics_is_refused(bench: Bench, limit: int) -> None:
    """It has no last topic after which the next round could continue."""
    with pytest.raises(InvalidInput, match=f"limit = {limit}; give a whole number from 1 "):
        collect(bench.store, bench.planes, retention_minutes=0.0, limit=limit)


def test_only_the_same_prune_gets_the_operation_of_its_key(bench: Bench) -> None:
    """Before the segment is pruned, and after it."""
    bench.topic_with(segments=2)
    for segment_id in (0, 1):
        bench.reshape(splitting(segment_id))
        drain(bench, segment_id)
    request = bench.request()
    first = collect_segment(bench.store, bench.planes, TOPIC, 0, request)

    for _ in range(2):
        again = collect_segment(bench.store, bench.planes, TOPIC, 0, request)
        assert (again.repeated, again.operation.operation_id) == (True, first.operation.operation_id)
        with pytest.raises(Conflict, match=f"{request.request_key} was used for prune of {TOPIC}") as refused:
            collect_segment(bench.store, bench.planes, TOPIC, 1, request)
        said = f"(operation {first.operation.operation_id}: segment ids [0]), not for segment ids [1]; take a"
        assert said in refused.value.message
        bench.settle()
