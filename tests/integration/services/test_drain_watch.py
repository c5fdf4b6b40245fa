"""What is left of sealed segments is counted on real logs, so that a drain that stands still is told from one that is slow."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial

import pytest

from controller.clock import Clock, SystemClock
from controller.dataplane.base import DataPlane, LogState
from controller.services import drain_watch
from controller.services.drain_watch import DrainWatch
from controller.services.reconciler import reconcile
from controller.services.segment_admin import splitting
from controller.store.shards import Shards
from controller.store.topics import drains
from tests.support.bench import Bench
from tests.support.embedded_terminations import forget_termination
from tests.support.faulty_data_plane import Fault, FaultyDataPlane, PlannedFault
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

ALL, NONE = Shards.of(1, [0]), Shards.of(1, [])
_STILL = "SELECT segment_id, unread_messages, waits_for_parents, floor(still_seconds / 60)::int FROM inspect.undrained ORDER BY 1"
_LONGEST = "SELECT floor(still_drain_seconds / 60)::int FROM inspect.health"
_BEFORE = """
    SELECT DISTINCT segment_id, waits_for, backlog, floor(extract(epoch FROM clock_timestamp() - backlog_counted_at) / 60)::int
      FROM inspect.buckets WHERE waits_for <> '{}' ORDER BY 1
"""
_COUNTED = "SELECT segment_id FROM cleave.drain_backlog ORDER BY 1"
_LATER = "UPDATE cleave.drain_backlog SET moved_at = moved_at - interval '10 minutes', counted_at = counted_at - interval '10 minutes'"


def watch(
    bench: Bench,
    shards: Shards = ALL,
    *,
    sealed_for_seconds: float = 0.0,
    planes: Mapping[str, DataPlane] | None = None,
    clock: Clock | None = None,
) -> DrainWatch:
    return DrainWatch(
        bench.store,
        planes or bench.planes,
        lambda: shards,
        clock or SystemClock(),
        reconcile=partial(reconcile, bench.store, bench.planes),
        sealed_for_seconds=sealed_for_seconds,
    )


@pytest.fixture
def drained(bench: Bench) -> Bench:
    """Segment 0 was sealed with five messages that a consumer of `billing` has to read."""
    bench.topic_with()
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation) SELECT topic_id, 'billing', 'c', 'life-1' FROM cleave.topic"
    )
    bench.publish(0, 5)
    bench.reshape(splitting(0))
    return bench


def read(bench: Bench, messages: int) -> None:
    """Acknowledge so many more of the segment's messages."""
    bench.execute(
        "UPDATE embedded.cursor c SET position = c.position + :messages FROM embedded.log l WHERE l.log_id = c.log_id AND l.name = :log",
        messages=messages,
        log=bench.log_of(0),
    )


def test_a_drain_that_stands_still_is_told_from_one_that_moves(drained: Bench) -> None:
    assert watch(drained).round() == 1
    assert drained.rows(_STILL) == [(0, 5, False, 0)]

    drained.execute(_LATER)
    watch(drained).round()
    assert drained.rows(_STILL) == [(0, 5, False, 10)], "nothing was read"

    read(drained, 1)
    watch(drained).round()
    assert drained.rows(_STILL) == [(0, 4, False, 0)], "it moves"


def test_what_nobody_has_counted_stands_still_since_its_seal(drained: Bench) -> None:
    drained.execute(
        "UPDATE cleave.segment SET sealed_at = sealed_at - interval '30 minutes', created_at = created_at - interval '1 hour' WHERE segment_id = 0"
    )
    assert drained.rows(_STILL) == [(0, None, False, 30)]


def test_what_waits_for_its_parents_is_not_to_move(drained: Bench) -> None:
    drained.reshape(splitting(1))
    assert watch(drained).round() == 2
    assert [(segment, waits) for segment, _, waits, _ in drained.rows(_STILL)] == [(0, False), (1, True)]
    drained.execute(
        "UPDATE cleave.drain_backlog SET moved_at = moved_at - (1 + segment_id) * interval '10 minutes'"
    )
    assert drained.rows(_LONGEST) == [(10,)]
    drained.store.in_transaction(drains.mark_drained, drained.topic_id, "billing", [0])
    assert [(segment, waits) for segment, _, waits, _ in drained.rows(_STILL)] == [(1, False)]
    for minutes in (0, 15, 20):
        assert drained.rows(_LONGEST) == [(minutes,)], "it could not be read before"
        drained.execute("UPDATE cleave.segment_drain SET drained_at = drained_at - interval '15 minutes'")


def test_what_is_read_to_its_end_is_forgotten(drained: Bench) -> None:
    watch(drained).round()
    drained.store.in_transaction(drains.mark_drained, drained.topic_id, "billing", [0])
    watch(drained, NONE).round()
    assert drained.scalar("SELECT count(*) FROM cleave.drain_backlog") == 1, "not a shard of this worker"
    assert watch(drained).round() == 0
    assert drained.scalar("SELECT count(*) FROM cleave.drain_backlog") == 0


def test_fresh_drains_and_those_of_other_workers_are_not_counted(drained: Bench) -> None:
    assert watch(drained, NONE).round() == 0
    assert watch(drained, sealed_for_seconds=3600.0).round() == 0
    assert watch(drained, sealed_for_seconds=0.0).round() == 1


def test_a_log_that_does_not_answer_keeps_what_was_counted(drained: Bench) -> None:
    watch(drained).round()
    drained.execute(_LATER)
    broken = FaultyDataPlane(drained.plane, PlannedFault(Fault.REFUSED, "backlog")).as_data_plane()
    assert watch(drained, planes={drained.plane.name: broken}).round() == 0
    assert drained.rows(_STILL) == [(0, 5, False, 10)]


def test_a_log_that_does_not_answer_keeps_no_other_from_being_counted(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained.reshape(splitting(1))
    monkeypatch.setattr(drain_watch, "DRAINS_A_ROUND", 1)
    silent, backlog = drained.log_of(0), drained.runner_plane.backlog
    monkeypatch.setattr(
        drained.runner_plane, "backlog", lambda log, name: None if log == silent else backlog(log, name)
    )
    clock = ManualClock()
    rounds = watch(drained, clock=clock)

    assert [rounds.round() for _ in range(3)] == [0, 1, 1]
    assert drained.rows(_COUNTED) == [(1,)]

    monkeypatch.setattr(drained.runner_plane, "backlog", backlog)
    clock.seconds += drain_watch.LAST_SECONDS
    rounds.round()
    assert drained.rows(_COUNTED) == [(0,), (1,)]


def test_counts_that_a_slow_log_left_no_time_for_come_first_in_the_next_round(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained.reshape(splitting(1))
    monkeypatch.setattr(drain_watch, "PARALLEL_CALLS", 1)
    clock, slow, backlog = ManualClock(), drained.log_of(0), drained.runner_plane.backlog

    def count(log: str, subscription: str) -> int | None:
        if log != slow:
            return backlog(log, subscription)
        clock.seconds += drain_watch.ROUND_SECONDS
        return None

    monkeypatch.setattr(drained.runner_plane, "backlog", count)
    rounds = watch(drained, clock=clock)

    assert [rounds.round() for _ in range(2)] == [0, 1]
    assert drained.rows(_COUNTED) == [(1,)]


def test_it_counts_again_and_again_until_it_is_stopped(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_watch, "INTERVAL_SECONDS", 0.01)
    one = watch(drained)
    thread = threading.Thread(target=one.run)
    thread.start()
    wait_until(lambda: drained.rows(_STILL) == [(0, 5, False, 0)], message="the first round")
    read(drained, 2)
    wait_until(lambda: drained.rows(_STILL)[0][1] == 3, message="another round")
    one.stop()
    thread.join()


def test_what_waits_says_how_much_is_unread_before_it(drained: Bench) -> None:
    """Of all ancestors together, as far as they were counted, and as of the count that is longest ago."""
    drained.publish(1, 2)
    drained.reshape(splitting(1))
    waits = [(1, [0]), (2, [0]), (3, [0, 1]), (4, [0, 1])]
    assert drained.rows(_BEFORE) == [(segment, before, None, None) for segment, before in waits]

    watch(drained).round()
    drained.execute(_LATER + " WHERE segment_id = 0")

    assert drained.rows(_BEFORE) == [(1, [0], 5, 10), (2, [0], 5, 10), (3, [0, 1], 7, 10), (4, [0, 1], 7, 10)]
    drained.execute("DELETE FROM cleave.drain_backlog WHERE segment_id = 0")
    assert drained.rows(_BEFORE) == [
        (1, [0], None, None),
        (2, [0], None, None),
        (3, [0, 1], 2, 0),
        (4, [0, 1], 2, 0),
    ]


def test_what_was_sealed_just_now_is_counted_where_a_round_has_room(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained.execute(
        "UPDATE cleave.segment SET sealed_at = sealed_at - interval '10 minutes', created_at = created_at - interval '1 hour'"
        " WHERE segment_id = 0"
    )
    drained.reshape(splitting(1))
    monkeypatch.setattr(drain_watch, "DRAINS_A_ROUND", 1)
    assert [watch(drained).round() for _ in range(2)] == [1, 1]
    assert drained.rows(_COUNTED) == [(0,)]

    monkeypatch.setattr(drain_watch, "DRAINS_A_ROUND", 2)
    assert watch(drained).round() == 2
    assert drained.rows(_COUNTED) == [(0,), (1,)]


def test_what_can_be_read_is_counted_before_what_waits_for_its_parents(
    drained: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained.reshape(splitting(1))
    monkeypatch.setattr(drain_watch, "DRAINS_A_ROUND", 1)
    assert [watch(drained).round() for _ in range(2)] == [1, 1]
    assert drained.rows(_COUNTED) == [(0,)]

    drained.store.in_transaction(drains.mark_drained, drained.topic_id, "billing", [0])
    assert watch(drained).round() == 1
    assert drained.rows(_COUNTED) == [(1,)]


def test_a_drained_log_whose_termination_was_forgotten_is_terminated_again(drained: Bench) -> None:
    """A broker (seen with 4.2.4) forgets a termination if it unloads the topic at the same time. Readers then wait for the end forever."""
    log = drained.log_of(0)
    forget_termination(drained, log)

    watch(drained).round()
    assert drained.plane.segment_state(log) is LogState.OPEN, "messages are unread"

    read(drained, 5)
    watch(drained).round()
    assert drained.plane.segment_state(log) is LogState.TERMINATED
