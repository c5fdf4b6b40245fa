"""The gate keeper on real rows and embedded logs: which segments it drains, which gates it opens and when, and how it respects a seek."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller.domain.errors import DataPlaneUnavailable, LostRace, SubscriptionNotFound, TopicNotFound
from controller.domain.gate_states import GateState
from controller.domain.seek_target import EARLIEST, LATEST, SeekTarget
from controller.services import garbage_collector, gate_keeper, subscription_admin
from controller.services.gate_keeper import AUDIT_AFTER_OPENING_SECONDS, GateKeeper
from controller.services.reconciler import FindingKind, reconcile
from controller.services.segment_admin import merging, splitting
from controller.store.journal.request_keys import Intent
from controller.store.shards import Shards
from controller.store.topics import drains, gates, topics
from controller.store.topics.gates import ShutGates
from tests.support.gated_logs import ALL, GatedBench
from tests.support.manual_clock import ManualClock

_DRAINED = "SELECT segment_id FROM cleave.segment_drain WHERE subscription = 'billing' ORDER BY 1"
_VIEW = "SELECT segment_id, gate, waits_for, overdue_since IS NOT NULL FROM inspect.gates ORDER BY 1"
_WHY = "SELECT DISTINCT segment_id, reason FROM inspect.buckets WHERE subscription = 'billing' ORDER BY 1"
_HEALTH = "SELECT gates_shut, gates_overdue, gates_breached FROM inspect.health"


@pytest.fixture
def bench(database: str) -> Iterator[GatedBench]:
    """A bench whose logs have fake gates."""
    bench = GatedBench(database)
    yield bench
    bench.close()


def drained(bench: GatedBench) -> list[int]:
    return [row[0] for row in bench.rows(_DRAINED)]


def test_gates_open_when_the_parent_is_read_and_its_cursor_is_written_down(bench: GatedBench) -> None:
    bench.stock_split()

    assert bench.keep() == 1
    assert bench.gate_rows() == {1: "closed", 2: "closed"}
    assert bench.closed_at_plane() == {bench.log_of(1), bench.log_of(2)}
    assert bench.rows(_VIEW) == [(1, "closed", [0], False), (2, "closed", [0], False)]

    bench.read(0)
    bench.keep()
    assert bench.gate_rows() == {1: "open", 2: "open"}
    assert bench.closed_at_plane() == set()
    assert drained(bench) == [0]
    assert bench.keep() == 0


def test_a_cursor_that_only_the_broker_remembers_opens_nothing(bench: GatedBench) -> None:
    bench.stock_split()
    bench.read(0)
    bench.gated.unwritten.add(bench.log_of(0))

    bench.keep()
    assert (bench.gate_rows(), drained(bench)) == ({1: "closed", 2: "closed"}, [])

    bench.gated.unwritten.clear()
    bench.keep()
    assert bench.gate_rows() == {1: "open", 2: "open"}


def test_subscriptions_that_failed_come_last_and_not_all_in_one_round(
    bench: GatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.stock_topic(1)
    for name in ("a", "b"):
        bench.subscribe_standard(name)
    bench.publish(0)
    bench.reshape(splitting(0))
    clock, tried = ManualClock(), list[str]()
    keeper = bench.keeper(clock)

    def open_gates(shut: ShutGates) -> None:
        tried.append(shut.key.name)
        clock.seconds += 10.0
        if shut.key.name != "billing":
            raise DataPlaneUnavailable("no answer in time")

    monkeypatch.setattr(gate_keeper, "PARALLEL_CALLS", 1)
    monkeypatch.setattr(keeper, "_open_what_may_open", open_gates)
    rounds = []
    for _ in range(3):
        clock.seconds += 10.0
        keeper.round()
        rounds.append(tuple(tried))
        tried.clear()

    assert rounds == [("a", "b", "billing"), ("billing", "a"), ("billing", "b")]


@pytest.fixture
def failing_keeper(bench: GatedBench, monkeypatch: pytest.MonkeyPatch) -> GateKeeper:
    """A keeper of one subscription with shut gates, whose broker does not answer."""
    bench.stock_split()
    keeper = bench.keeper()
    monkeypatch.setattr(
        keeper, "_open_what_may_open", Mock(side_effect=DataPlaneUnavailable("no answer in time"))
    )
    return keeper


def test_a_subscription_that_has_failed_for_long_does_not_end_the_round(failing_keeper: GateKeeper) -> None:
    failing_keeper.round()
    (pace,) = failing_keeper._paces.values()
    pace.failures, pace.next_at = 1_023, 0.0  # as after 85 minutes of failures

    assert failing_keeper.round() == 1
    assert pace.failures == 1_024


def test_a_failure_that_cannot_be_stored_does_not_end_the_round(
    failing_keeper: GateKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "note_failure", Mock(side_effect=LostRace("a lock was held too long")))

    with capture_logs() as logs:
        assert failing_keeper.round() == 1

    (pace,) = failing_keeper._paces.values()
    assert pace.failures == 1
    assert [entry["event"] for entry in logs] == ["gates stay shut", "error of a gate not stored"]


def test_grandchildren_wait_for_their_grandparent_although_their_parent_is_empty(bench: GatedBench) -> None:
    bench.stock_split()
    bench.reshape(splitting(1))

    bench.keep()
    assert set(bench.gate_rows().values()) == {"closed"}
    assert ("persist", bench.log_of(1)) not in bench.gated.acts

    bench.read(0)
    bench.keep()  # the empty segment 1 is drained as soon as its own gate is open
    assert bench.gate_rows() == {1: "open", 2: "open", 3: "open", 4: "open"}
    assert drained(bench) == [0, 1]


def test_what_joins_two_segments_waits_for_both(bench: GatedBench) -> None:
    bench.stock_topic(2)
    bench.publish(0)
    bench.publish(1)
    bench.reshape(merging(0, 1))

    bench.read(0)
    bench.keep()
    assert (bench.gate_rows(), drained(bench)) == ({2: "closed"}, [0])
    bench.read(1)
    bench.keep()
    assert bench.gate_rows() == {2: "open"}


def test_each_subscription_has_gates_of_its_own(bench: GatedBench) -> None:
    bench.stock_topic(1, "ours")
    bench.subscribe_standard("audit")
    bench.publish(0)
    bench.reshape(splitting(0))
    bench.read(0, "audit")

    bench.keep()
    assert bench.gate_rows("audit") == {1: "open", 2: "open"}
    assert bench.gate_rows("billing") == {1: "closed", 2: "closed"}
    assert bench.gate_rows("ours") == {}


def test_calls_for_the_gates_of_one_log_are_made_one_at_a_time(bench: GatedBench) -> None:
    """Two calls for one log would open the barrier's producer twice, and a broker refuses the second one."""
    bench.stock_topic()
    bench.subscribe_standard("audit")
    bench.publish(0)
    running, overlaps, lock = set[str](), list[tuple[str, str]](), threading.Lock()

    def call_slowly(act: str, log: str) -> None:
        with lock:
            overlaps.extend([(act, log)] if log in running else [])
            running.add(log)
        time.sleep(0.05)
        with lock:
            running.discard(log)

    bench.gated.before = call_slowly
    intent = bench.intend(splitting(0))
    bench.drive(
        intent.operation.operation_id, bench.context("parallel", parallel_calls=4, lease_seconds=30.0)
    )
    for name in ("audit", "billing"):
        bench.read(0, name)
    bench.keep()

    assert set(bench.gate_rows().values()) | set(bench.gate_rows("audit").values()) == {"open"}
    assert overlaps == []


def test_what_was_asked_before_a_seek_marks_and_opens_nothing_after_it(
    bench: GatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.stock_split()
    bench.read(0)
    persist, persisted = bench.gated.persist_cursor_at_end, list[str]()

    def answer_from_before_the_seek(log: str, name: str) -> bool:
        persisted.append(log)
        is_drained = persist(log, name)
        if len(persisted) == 1:
            bench.finish(seek_to_the_beginning(bench))
        return is_drained

    monkeypatch.setattr(bench.gated, "persist_cursor_at_end", answer_from_before_the_seek)
    bench.keep()

    assert persisted
    assert (drained(bench), bench.gate_rows()) == ([], {1: "closed", 2: "closed"})


@pytest.mark.parametrize("is_over", [False, True], ids=["begun", "over"])
@pytest.mark.parametrize("point", ["drain:before", "ready:before"])
def test_a_seek_between_a_plan_and_its_act_is_noticed_by_the_act(
    bench: GatedBench, point: str, *, is_over: bool
) -> None:
    bench.stock_split()
    bench.read(0)
    intents: list[Intent] = []

    def seek_once(reached: str) -> None:
        if reached == point and not intents:
            intents.append(seek_to_the_beginning(bench))
            if is_over:
                bench.finish(intents[0])

    bench.keeper(checkpoint=seek_once).round()

    assert intents
    assert bench.gate_rows() == {1: "closed", 2: "closed"}
    assert "open" not in {act for act, _ in bench.gated.acts}
    assert drained(bench) == ([0] if (point, is_over) == ("ready:before", False) else [])


def test_no_opening_begins_that_could_last_until_a_seek_closes_the_gate_again(bench: GatedBench) -> None:
    bench.stock_split()
    bench.read(0)
    clock = ManualClock()

    def pause(point: str) -> None:
        if point == "ready:after":
            clock.seconds += 2 * bench.gated.call_timeout_seconds

    bench.keeper(clock, checkpoint=pause).round()
    assert bench.gate_rows() == {1: "ready", 2: "ready"}
    assert "open" not in {act for act, _ in bench.gated.acts}

    bench.keep()
    assert bench.gate_rows() == {1: "open", 2: "open"}


def test_an_opening_under_way_holds_a_seek_up_and_a_seek_holds_openings_back(bench: GatedBench) -> None:
    bench.stock_split()
    bench.execute(
        "UPDATE cleave.gate SET state = 'ready', ready_at = now(), opening_until = now() + interval '1 hour'"
    )
    intent = seek_to_the_beginning(bench)
    bench.run_once(intent.operation.operation_id)
    assert "is being opened" in str(bench.operation(intent.operation.operation_id).last_error)
    acts = len(bench.gated.acts)

    bench.read(0)
    bench.keep()
    assert bench.gate_rows() == {1: "ready", 2: "ready"}
    assert ("open", bench.log_of(1)) not in bench.gated.acts[acts:]

    bench.execute("UPDATE cleave.gate SET opening_until = now()")
    bench.finish(intent)
    assert bench.gate_rows() == {1: "closed", 2: "closed"}


def test_a_seek_back_closes_the_gates_before_a_cursor_moves(bench: GatedBench) -> None:
    bench.open_split()
    bench.publish(1)
    bench.read(1)
    bench.gated.acts.clear()

    bench.finish(seek_to_the_beginning(bench))

    first_move = next(i for i, (act, _) in enumerate(bench.gated.acts) if act == "seek")
    closed = {log for act, log in bench.gated.acts[:first_move] if act == "close"}
    assert closed == {bench.log_of(1), bench.log_of(2)}
    assert next(log for act, log in bench.gated.acts if act == "seek") == bench.log_of(0)
    assert (bench.gate_rows(), drained(bench)) == ({1: "closed", 2: "closed"}, [])
    assert bench.gated.backlog(bench.log_of(1), "billing") == 3

    bench.read(0)
    bench.keep()
    assert bench.gate_rows() == {1: "open", 2: "open"}


def test_a_seek_to_an_instant_leaves_a_child_at_its_barrier_while_an_ancestor_is_unread(
    bench: GatedBench,
) -> None:
    bench.open_split()
    before = int(bench.scalar("SELECT extract(epoch FROM clock_timestamp()) * 1000 - 60000"))
    after = int(bench.scalar("SELECT extract(epoch FROM clock_timestamp()) * 1000 + 60000"))

    bench.finish(seek(bench, SeekTarget(before)))
    assert [bench.gated.sought[bench.log_of(i)] for i in range(3)] == [before, 0, 0]

    bench.finish(seek(bench, SeekTarget(after)))
    assert [bench.gated.sought[bench.log_of(i)] for i in range(3)] == [after] * 3
    bench.keep()
    assert set(bench.gate_rows().values()) == {"open"}


def test_a_seek_to_the_end_leaves_everything_read_and_open(bench: GatedBench) -> None:
    bench.stock_split()

    bench.finish(seek(bench, LATEST))
    bench.keep()

    assert (drained(bench), set(bench.gate_rows().values())) == ([0], {"open"})


def test_a_keeper_without_shards_reports_no_shut_gates(bench: GatedBench) -> None:
    bench.stock_split()
    shards = [ALL, Shards.of(1, [])]
    keeper = GateKeeper(bench.store, bench.planes, lambda: shards.pop(0), ManualClock())

    assert keeper.round() == 1
    assert REGISTRY.get_sample_value("cleave_gates_shut") == 2
    assert keeper.round() == 0
    assert REGISTRY.get_sample_value("cleave_gates_shut") == 0


def test_gates_of_registered_consumers_are_opened_whatever_is_unread(bench: GatedBench) -> None:
    bench.stock_split()
    bench.execute("UPDATE cleave.subscription SET consumers = 'cleave'")

    bench.keep()

    assert bench.gate_rows() == {1: "open", 2: "open"}
    assert drained(bench) == []


def test_a_broker_that_is_away_is_recorded_and_tried_again(bench: GatedBench) -> None:
    bench.stock_split()
    bench.read(0)

    def fail_openings(act: str, _log: str) -> None:
        if act == "open":
            raise DataPlaneUnavailable("the broker does not answer")

    bench.gated.before = fail_openings
    bench.keep()
    assert bench.rows("SELECT DISTINCT state, last_error FROM cleave.gate") == [
        ("ready", "the broker does not answer")
    ]
    assert bench.rows(_HEALTH) == [(2, 2, 0)]
    assert {reason for _, reason in bench.rows(_WHY)} >= {"gate being opened: every ancestor is read"}

    bench.gated.before = lambda _act, _log: None
    bench.keep()
    assert bench.gate_rows() == {1: "open", 2: "open"}


def test_a_closed_gate_that_is_found_open_is_closed_again(bench: GatedBench) -> None:
    bench.stock_split()
    bench.gated.open_all_by_hand()

    bench.keep()

    assert bench.closed_at_plane() == {bench.log_of(1), bench.log_of(2)}


def test_a_gate_that_another_keeper_opens_during_the_audit_is_not_closed_again(
    bench: GatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.stock_split()
    gate_state = bench.gated.gate_state

    def open_meanwhile(log: str, name: str) -> GateState | None:
        monkeypatch.setattr(bench.gated, "gate_state", gate_state)
        bench.read(0)
        bench.keep()
        return gate_state(log, name)

    monkeypatch.setattr(bench.gated, "gate_state", open_meanwhile)
    bench.keep()

    assert (bench.gate_rows(), bench.closed_at_plane()) == ({1: "open", 2: "open"}, set())


def test_a_keeper_that_has_lost_its_shard_closes_no_gate_again(bench: GatedBench) -> None:
    bench.stock_split()
    bench.gated.open_all_by_hand()
    shards = iter([ALL])

    GateKeeper(bench.store, bench.planes, lambda: next(shards, Shards.of(1, [])), ManualClock()).round()

    assert bench.closed_at_plane() == set()


def test_a_keeper_that_stops_ends_its_audit(bench: GatedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.stock_split()
    keeper, gate_state, asked = bench.keeper(), bench.gated.gate_state, list[str]()

    def stop(log: str, name: str) -> GateState | None:
        asked.append(log)
        keeper.stop()
        return gate_state(log, name)

    monkeypatch.setattr(bench.gated, "gate_state", stop)
    keeper.round()

    assert asked == [bench.log_of(1)]


def test_a_gate_that_is_found_spent_is_closed_again(bench: GatedBench) -> None:
    bench.stock_split()
    spent = bench.log_of(1)
    bench.gated.set_gate(spent, "billing", GateState.SPENT)
    bench.gated.acts.clear()

    bench.keep()

    assert [log for act, log in bench.gated.acts if act == "close"] == [spent]
    assert set(bench.gated.gates.values()) == {GateState.CLOSED}


def test_an_opened_gate_has_the_other_gates_of_its_topic_looked_at_soon(bench: GatedBench) -> None:
    """The change of a policy that opens a gate wears down the barriers of other subscriptions."""
    bench.stock_topic()
    bench.subscribe_standard("audit")
    bench.publish(0)
    bench.reshape(splitting(0))
    clock = ManualClock()
    keeper = bench.keeper(clock)
    keeper.round()
    bench.read(0, "audit")
    clock.seconds += 1
    keeper.round()
    assert bench.gate_rows("audit") == {1: "open", 2: "open"}
    bench.gated.set_gate(bench.log_of(1), "billing", GateState.SPENT)

    clock.seconds += AUDIT_AFTER_OPENING_SECONDS
    keeper.round()

    assert bench.gated.gates[bench.log_of(1), "billing"] is GateState.CLOSED


def test_a_gate_that_a_call_may_still_be_opening_is_not_closed_again(bench: GatedBench) -> None:
    bench.stock_split()
    bench.execute("UPDATE cleave.gate SET opening_until = now() + interval '1 hour' WHERE segment_id = 1")
    bench.gated.open_all_by_hand()

    bench.keep()
    assert bench.closed_at_plane() == {bench.log_of(2)}

    bench.execute("UPDATE cleave.gate SET opening_until = now()")
    bench.keep()
    assert bench.closed_at_plane() == {bench.log_of(1), bench.log_of(2)}


def test_a_breached_gate_is_reported_until_it_is_whole_again(bench: GatedBench) -> None:
    bench.stock_split()
    bench.gated.set_gate(bench.log_of(1), "billing", GateState.BREACHED)

    bench.keep()
    assert bench.rows(_HEALTH) == [(2, 0, 1)]
    assert dict(bench.rows(_WHY))[1].startswith("gate breached: a consumer has acknowledged the barrier")  # type: ignore[arg-type]
    assert kinds_of(bench) == {FindingKind.GATE_BREACHED}

    bench.gated.set_gate(bench.log_of(1), "billing", GateState.CLOSED)
    bench.keep()
    assert bench.rows(_HEALTH) == [(2, 0, 0)]


@pytest.mark.parametrize("state", [GateState.CLOSED, GateState.SPENT, GateState.BREACHED], ids=str)
def test_the_reconciler_has_a_gate_that_should_be_open_opened(bench: GatedBench, state: GateState) -> None:
    bench.open_split()
    bench.gated.set_gate(bench.log_of(2), "billing", state)

    assert kinds_of(bench, dry_run=True) == {FindingKind.GATE_SHUT}
    assert bench.gate_rows() == {1: "open", 2: "open"}
    assert kinds_of(bench) == {FindingKind.GATE_SHUT}
    bench.keep()
    assert bench.closed_at_plane() == set()
    assert kinds_of(bench) == set()


def test_the_reconciler_has_a_gate_that_should_be_closed_closed(bench: GatedBench) -> None:
    """A restored database may lack the record that the gate was open, or that the parent was read."""
    bench.open_split()
    bench.store.in_transaction(drains.undrain, bench.topic_id, "billing", [0])
    bench.execute("DELETE FROM cleave.gate WHERE segment_id = 2")

    assert kinds_of(bench) == {FindingKind.GATE_OPEN}
    assert bench.gate_rows() == {1: "closed", 2: "closed"}
    bench.gated.unwritten.add(bench.log_of(0))
    bench.keep()
    assert bench.closed_at_plane() == {bench.log_of(1), bench.log_of(2)}


def test_the_reconciler_skips_a_subscription_that_is_deleted_meanwhile(
    bench: GatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.open_split()
    bench.gated.set_gate(bench.log_of(2), "billing", GateState.CLOSED)
    monkeypatch.setattr(gates, "stock_subscriptions", lambda _tx, _topic_id: ["deleted", "billing"])

    assert kinds_of(bench) == {FindingKind.GATE_SHUT}


def test_the_reconciler_skips_a_subscription_whose_deletion_begins_while_its_gates_are_read(
    bench: GatedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.stock_topic()
    bench.subscribe_standard("audit")
    bench.publish(0)
    bench.reshape(splitting(0))
    for subscription in ("audit", "billing"):
        bench.read(0, subscription)
    bench.keep()
    bench.gated.set_gate(bench.log_of(2), "billing", GateState.CLOSED)
    first_log, gate_state = bench.log_of(1), bench.gated.gate_state

    def begin_deletion(log: str, subscription: str) -> GateState | None:
        if (log, subscription) == (first_log, "audit"):
            subscription_admin.delete_subscription(bench.store, bench.topic_name, "audit", bench.request())
        return gate_state(log, subscription)

    monkeypatch.setattr(bench.gated, "gate_state", begin_deletion)

    assert kinds_of(bench) == {FindingKind.GATE_SHUT}


def test_a_cursor_that_is_missing_comes_back_behind_its_gate(bench: GatedBench) -> None:
    bench.stock_split()
    bench.gated.delete_subscription(bench.log_of(1), "billing")
    bench.gated.open_all_by_hand()

    assert FindingKind.CURSOR_MISSING in kinds_of(bench)
    assert (bench.log_of(1), "billing") in bench.gated.gates


def test_a_parent_is_kept_until_its_cursor_is_written_down_and_gates_go_with_their_segments(
    bench: GatedBench,
) -> None:
    bench.stock_split()
    bench.read(0)

    [kept] = garbage_collector.collect(bench.store, bench.planes, retention_minutes=0).kept
    assert "has not stored yet" in kept.reason

    bench.keep()
    bench.reshape(splitting(1))
    bench.keep()
    bench.settle(collects=True)
    assert bench.gate_rows() == {2: "open", 3: "open", 4: "open"}


def test_no_log_of_a_topic_that_nothing_may_act_on_is_touched(bench: GatedBench) -> None:
    bench.stock_split()
    bench.read(0)
    bench.execute("UPDATE cleave.topic SET verified_under = 'elsewhere', row_version = row_version + 1")

    assert bench.keep() == 0
    assert bench.gate_rows() == {1: "closed", 2: "closed"}


def seek(bench: GatedBench, target: SeekTarget) -> Intent:
    return subscription_admin.seek_subscription(
        bench.store, bench.topic_name, "billing", target, bench.request(), release_seconds=0.0
    )


def seek_to_the_beginning(bench: GatedBench) -> Intent:
    return seek(bench, EARLIEST)


def kinds_of(bench: GatedBench, *, dry_run: bool = False) -> set[FindingKind]:
    return {finding.kind for finding in reconcile(bench.store, bench.planes, bench.topic_id, dry_run=dry_run)}


@pytest.mark.parametrize("error", [TopicNotFound("gone"), SubscriptionNotFound("gone")])
def test_gates_of_what_was_deleted_meanwhile_are_not_reported(
    bench: GatedBench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench.stock_split()
    bench.read(0)
    monkeypatch.setattr(topics, "get_topic", Mock(side_effect=error))

    with capture_logs() as lines:
        bench.keep()

    assert [line["event"] for line in lines if line["log_level"] != "info"] == []
    assert bench.rows("SELECT DISTINCT last_error FROM cleave.gate") == [(None,)]
