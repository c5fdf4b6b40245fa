"""The proof that the sweeper demands immediately before it deletes a log, on the log as it is then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller.dataplane.base import MISSING_LOG, LogReport, LogState
from controller.dataplane.embedded.plane import EmbeddedDataPlane
from controller.dataplane.log_deletion_rule import FOREIGN
from controller.domain.log_origin import LogOrigin
from controller.services import topic_admin
from controller.services.deletion_sweeper import USED_SIBLING, sweep
from controller.services.garbage_collector import collect
from controller.services.segment_admin import splitting
from controller.store.topics import drains
from tests.integration.services.test_deletion_sweeper import an_aborted_split, open_deletion_entries
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_data_plane import FaultyDataPlane


def replace_by_foreign(bench: Bench, log: str, *, messages: int = 0) -> None:
    """Another journal's operation creates a log of the name."""
    bench.plane.delete_segment(log)
    bench.plane.create_segment(log, ["billing"], LogOrigin("another", 1, (0,), ()))
    if messages:
        bench.append(log, messages)


def a_pruned_segment(bench: Bench, subscriptions: tuple[str, ...] = ("billing",)) -> str:
    """The log of a segment whose readers said that they had read it, and whose broker forgot their acknowledgements."""
    bench.topic_with(subscriptions=subscriptions)
    bench.publish(0, 3)
    bench.reshape(splitting(0))
    log = bench.log_of(0)
    for name in subscriptions:
        bench.store.in_transaction(drains.mark_drained, bench.topic_id, name, [0])
    [prune] = collect(bench.store, bench.planes, retention_minutes=0).operation_ids
    bench.drive(prune)
    return log


def test_a_log_that_another_operation_created_is_kept_as_it_is_and_listed(bench: Bench) -> None:
    log, own = an_aborted_split(bench)
    replace_by_foreign(bench, log)

    swept = sweep(bench.store, bench.planes)

    assert (swept.kept, swept.absent) == ({log: FOREIGN}, [own])
    assert bench.plane.segment_state(log) is LogState.OPEN
    assert [one.backing_topic for one in open_deletion_entries(bench)] == [own]
    assert bench.rows("SELECT backing_topic, reason, token FROM cleave.unmanaged_log") == [
        (log, FOREIGN, "another")
    ]
    assert bench.scalar("SELECT verified_under FROM cleave.topic") is None  # the journal may be the older one


def test_the_deletion_of_a_topic_takes_no_log_of_another_operation_along(bench: Bench) -> None:
    bench.topic_with()
    log = bench.log_of(0)
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    replace_by_foreign(bench, log, messages=2)

    assert sweep(bench.store, bench.planes).kept == {log: FOREIGN}
    assert bench.plane.backlog(log, "billing") == 2


def test_the_deletion_of_a_topic_takes_its_unread_messages_along(bench: Bench) -> None:
    bench.topic_with()
    bench.publish(0)
    log = bench.log_of(0)
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))

    assert sweep(bench.store, bench.planes).absent == [log]


def test_children_that_were_given_up_stay_for_the_message_in_one_of_them(bench: Bench) -> None:
    """A producer had looked the child up early, or belongs to a journal that is newer. A recovery needs both children."""
    used, unused = an_aborted_split(bench)
    bench.append(used)

    swept = sweep(bench.store, bench.planes)

    reason = "subscription billing has 1 unread message(s)"
    assert (swept.kept, swept.absent) == ({used: reason, unused: USED_SIBLING}, [])
    assert bench.plane.backlog(used, "billing") == 1


def test_a_message_that_comes_before_the_log_is_closed_keeps_the_log(bench: Bench) -> None:
    logs, plane = an_aborted_split(bench), FaultyDataPlane(bench.runner_plane)

    def append(call: str, number: int) -> None:
        if call == "terminate_segment":
            bench.append(plane.log[number - 1][1][0])

    plane.before_call = append
    swept = sweep(bench.store, {"embedded": plane.as_data_plane()})

    assert sorted(swept.kept) == logs
    assert [bench.plane.backlog(log, "billing") for log in logs] == [1, 1]


def test_a_log_that_is_not_closed_yet_is_left_for_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = an_aborted_split(bench)
    with monkeypatch.context() as slow:
        slow.setattr(EmbeddedDataPlane, "terminate_segment", lambda _plane, _log: "0")
        failed = sweep(bench.store, bench.planes).failed

    assert sorted(failed) == logs
    assert all("not terminated yet" in why for why in failed.values())
    assert [bench.plane.segment_state(log) for log in logs] == [LogState.OPEN] * 2


def test_a_log_that_does_not_answer_is_left_for_later_and_keeps_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, other = an_aborted_split(bench)
    describing = EmbeddedDataPlane.describe_logs

    def describe_logs(plane: EmbeddedDataPlane, logs: Sequence[str]) -> dict[str, LogReport]:
        return {name: report for name, report in describing(plane, logs).items() if name != silent}

    monkeypatch.setattr(EmbeddedDataPlane, "describe_logs", describe_logs)
    swept = sweep(bench.store, bench.planes)

    assert (sorted(swept.failed), swept.absent) == ([silent], [other])
    assert "did not answer" in swept.failed[silent]
    assert bench.plane.segment_state(silent) is LogState.OPEN


def test_a_log_that_is_out_of_sight_for_a_moment_is_judged_when_it_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = an_aborted_split(bench)
    bench.append(log)
    with monkeypatch.context() as moving:
        moving.setattr(EmbeddedDataPlane, "describe_logs", lambda _, logs: dict.fromkeys(logs, MISSING_LOG))
        assert "could not be seen for a moment" in sweep(bench.store, bench.planes).failed[log]

    assert bench.plane.backlog(log, "billing") == 1
    bench.execute("UPDATE cleave.deletion_entry SET not_before = created_at")
    assert log in sweep(bench.store, bench.planes).kept


def test_acknowledgements_of_a_pruned_segment_that_a_broker_forgot_are_repeated(bench: Bench) -> None:
    log = a_pruned_segment(bench, ("audit", "billing"))

    assert sweep(bench.store, bench.planes).absent == [log]


def test_what_an_application_has_not_read_keeps_a_pruned_segments_log(bench: Bench) -> None:
    """Nobody recorded that it had read the segment."""
    log = a_pruned_segment(bench)
    bench.plane.create_subscription(log, "application-own")

    swept = sweep(bench.store, bench.planes)

    assert swept.kept == {log: "subscription application-own has 3 unread message(s)"}
    assert bench.plane.backlog(log, "application-own") == 3


def test_nothing_is_acknowledged_in_a_log_that_takes_appends(bench: Bench) -> None:
    """A log that came back is not the one that was read."""
    log = a_pruned_segment(bench)
    bench.plane.delete_segment(log)
    bench.create_again(log, ["billing"])
    bench.append(log)

    assert sweep(bench.store, bench.planes).kept == {log: "subscription billing has 1 unread message(s)"}
    assert bench.plane.backlog(log, "billing") == 1


def test_messages_of_a_segment_that_nobody_subscribed_to_were_for_nobody(bench: Bench) -> None:
    log = a_pruned_segment(bench, ())

    assert sweep(bench.store, bench.planes).absent == [log]
