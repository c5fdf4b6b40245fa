"""Deleting logs: twice gone is gone, once is not, and what cannot be deleted now is deleted later."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection

from controller.dataplane.base import LogState
from controller.dataplane.embedded import plane as embedded_plane
from controller.domain.errors import LostRace
from controller.domain.operation import OperationState
from controller.services import deletion_sweeper, topic_admin
from controller.services.deletion_sweeper import sweep
from controller.services.segment_admin import splitting
from controller.store.journal import deletion_entries
from controller.store.journal.deletion_entries import DeletionEntry
from controller.store.topics import unmanaged_logs
from tests.support.bench import CALL_TIMEOUT_SECONDS, TOPIC, Bench
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.waiting import wait_until


def an_aborted_split(bench: Bench) -> list[str]:
    """Logs of the children of a split that was given up after they were made."""
    bench.topic_with()
    operation = bench.intend(splitting(0)).operation
    bench.run_until(operation.operation_id, OperationState.PREPARED)
    bench.execute(
        "UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1"
        " WHERE operation_id = :operation_id",
        operation_id=operation.operation_id,
    )
    bench.drive(operation.operation_id)
    return sorted(child.backing_topic for child in operation.children)


def open_deletion_entries(bench: Bench) -> list[DeletionEntry]:
    """Those not closed."""
    return bench.store.in_transaction(deletion_entries.list_open)


def make_due(bench: Bench) -> None:
    """Forget the pause before the next try."""
    bench.execute("UPDATE cleave.deletion_entry SET not_before = '-infinity' WHERE closed_at IS NULL")


def test_logs_are_deleted_at_once_and_their_tombstones_closed_at_a_second_look(bench: Bench) -> None:
    logs = an_aborted_split(bench)

    first = sweep(bench.store, bench.planes)
    assert (sorted(first.absent), first.closed) == (logs, [])
    assert [bench.plane.segment_state(log) for log in logs] == [LogState.MISSING] * 2

    def closed() -> bool:
        sweep(bench.store, bench.planes)
        return not open_deletion_entries(bench)

    wait_until(closed)
    apart = "SELECT min(extract(epoch FROM closed_at - absent_since)) FROM cleave.deletion_entry"
    assert bench.scalar(apart) > CALL_TIMEOUT_SECONDS


def test_a_second_look_too_soon_closes_nothing(bench: Bench) -> None:
    an_aborted_split(bench)
    sweep(bench.store, bench.planes)
    bench.execute(
        "UPDATE cleave.deletion_entry SET not_before = '-infinity', absent_since = clock_timestamp()"
    )

    assert sweep(bench.store, bench.planes).closed == []
    assert len(open_deletion_entries(bench)) == 2


def test_a_log_that_comes_back_is_deleted_again_and_its_absences_start_anew(bench: Bench) -> None:
    log = an_aborted_split(bench)[0]
    sweep(bench.store, bench.planes)
    bench.create_again(log, ["billing"])  # a call held up on its way
    bench.execute(
        "UPDATE cleave.deletion_entry SET not_before = '-infinity', absent_since = absent_since - interval '1 hour'"
    )

    swept = sweep(bench.store, bench.planes)

    assert log in swept.absent
    assert log not in swept.closed
    assert len(swept.closed) == 1
    assert bench.plane.segment_state(log) is LogState.MISSING


def test_a_log_that_is_there_again_right_after_its_deletion_is_not_absent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An act that says it was done is looked at: here a call held up makes the log anew in between."""
    logs = an_aborted_split(bench)
    monkeypatch.setattr(deletion_sweeper, "PARALLEL_DELETES", 1)
    plane, made = FaultyDataPlane(bench.runner_plane), list[int]()

    def make_it_again(call: str, number: int) -> None:
        if call == "segment_state" and not made:  # after the deletion of the first log
            made.append(number)
            bench.create_again(logs[0])
            bench.create_again(logs[1])

    plane.before_call = make_it_again

    swept = sweep(bench.store, {"embedded": plane.as_data_plane()})

    [(failed, why)] = swept.failed.items()
    assert "exists again right after its deletion" in why
    [left] = [one for one in open_deletion_entries(bench) if one.backing_topic == failed]
    assert (left.absences, left.attempts) == (0, 1)


def test_what_a_deletion_left_behind_goes_at_the_second_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is gone, its messages are not: deletions have a time limit."""
    bench.topic_with()
    bench.publish(0, 1)
    log = bench.log_of(0)
    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))
    messages = "SELECT count(*) FROM embedded.message"
    with monkeypatch.context() as hurried:
        hurried.setattr(embedded_plane, "_SWEEP_SHARE", 0.0)
        sweep(bench.store, bench.planes)
    assert (bench.plane.segment_state(log), bench.scalar(messages)) == (LogState.MISSING, 1)
    make_due(bench)

    sweep(bench.store, bench.planes)

    assert bench.scalar(messages) == 0


def test_a_deletion_that_fails_is_tried_again_later(bench: Bench) -> None:
    logs = an_aborted_split(bench)
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.REFUSED, "delete_segment"))

    swept = sweep(bench.store, {"embedded": plane.as_data_plane()})

    [failed] = swept.failed
    assert (sorted([failed, *swept.absent]), len(swept.absent)) == (logs, 1)
    [left] = [one for one in open_deletion_entries(bench) if one.backing_topic == failed]
    assert left.attempts == 1
    assert "injected" in (left.last_error or "")
    make_due(bench)
    assert failed in sweep(bench.store, bench.planes).absent


def test_a_deletion_whose_answer_was_lost_is_found_done(bench: Bench) -> None:
    logs = an_aborted_split(bench)
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.LOST_ANSWER, "delete_segment", times=2))

    assert sorted(sweep(bench.store, {"embedded": plane.as_data_plane()}).failed) == logs
    make_due(bench)

    assert sorted(sweep(bench.store, bench.planes).absent) == logs


def test_tombstones_of_a_data_plane_that_is_not_here_are_left_open(bench: Bench) -> None:
    logs = an_aborted_split(bench)

    assert sorted(sweep(bench.store, {}).failed) == logs
    assert len(open_deletion_entries(bench)) == 2


def test_two_sweepers_do_not_take_the_same_tombstone(bench: Bench) -> None:
    an_aborted_split(bench)
    with bench.store.transaction() as tx:
        taken = deletion_entries.claim_due(tx, limit=1, hold_seconds=60.0)

        assert len(sweep(bench.store, bench.planes).absent) == 2 - len(taken)


def test_a_log_whose_keeping_could_not_be_recorded_has_failed_and_is_not_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = an_aborted_split(bench)
    bench.append(log)
    bench.append(other)

    def lose(*_: object) -> None:
        raise LostRace("another process lists it")

    with monkeypatch.context() as racing:
        racing.setattr(unmanaged_logs, "note", lose)
        lost = sweep(bench.store, bench.planes)
    make_due(bench)
    again = sweep(bench.store, bench.planes)

    assert (lost.kept, lost.failed) == ({}, dict.fromkeys([log, other], "another process lists it"))
    assert (sorted(again.kept), again.failed) == ([log, other], {})


def test_a_log_that_failed_and_was_kept_or_gone_later_in_the_sweep_has_not_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_sweeper, "BATCH", 1)
    monkeypatch.setattr(deletion_sweeper, "FIRST_DELAY_SECONDS", 0.0)
    log, other = an_aborted_split(bench)
    bench.append(log)
    plane = FaultyDataPlane(bench.runner_plane, PlannedFault(Fault.REFUSED, "describe_logs", times=2))

    swept = sweep(bench.store, {"embedded": plane.as_data_plane()}, limit=8)

    assert (log in swept.kept, other in {*swept.kept, *swept.absent}, swept.failed) == (True, True, {})


def test_a_log_that_was_gone_twice_in_the_same_sweep_is_listed_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_sweeper, "BATCH", 1)
    logs = an_aborted_split(bench)
    record = deletion_entries.record_absence

    def due_again(tx: Connection, entry_id: int, *, apart_seconds: float) -> bool:
        return record(tx, entry_id, apart_seconds=0.0)

    monkeypatch.setattr(deletion_entries, "record_absence", due_again)

    swept = sweep(bench.store, bench.planes, limit=8)

    assert (sorted(swept.absent), sorted(swept.closed)) == (sorted(logs), sorted(logs))


def test_a_log_that_was_gone_and_came_back_in_the_same_sweep_is_not_listed_as_gone(bench: Bench) -> None:
    """A long sweep takes an absent entry twice."""
    an_aborted_split(bench)
    [entry] = bench.store.in_transaction(deletion_entries.claim_due, limit=1, hold_seconds=60.0)
    report = deletion_sweeper.SweepReport(absent=[entry.backing_topic])

    deletion_sweeper._fail(bench.store, entry, "it came back", report)

    assert (report.absent, report.failed) == ([], {entry.backing_topic: "it came back"})
