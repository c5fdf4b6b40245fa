"""Gates as recorded: what a late runner, a late keeper and a seek may still write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.domain.errors import HeldUp
from controller.domain.operation import OperationState
from controller.services.segment_admin import splitting
from controller.store.decisions import evaluations
from controller.store.topics import gates, held_topics
from controller.store.topics.bucket_owners import SubscriptionKey
from tests.support.gated_logs import GatedBench

_BILLING = [("billing", 1), ("billing", 2)]


@pytest.fixture
def bench(database: str) -> Iterator[GatedBench]:
    """A topic of one segment with messages, and a subscription of standard consumers."""
    bench = GatedBench(database)
    bench.stock_topic()
    bench.publish(0)
    yield bench
    bench.close()


def key(bench: GatedBench, name: str = "billing") -> SubscriptionKey:
    return SubscriptionKey(bench.topic_id, name)


def note_closed(bench: GatedBench, operation_id: int) -> dict[int, str]:
    """Record both gates under the operation's present claim, as if none were recorded. Return what is recorded then."""
    bench.execute("DELETE FROM cleave.gate")
    with bench.store.transaction() as tx:
        gates.note_closed(tx, bench.operation(operation_id), _BILLING)
    return bench.gate_rows()


def test_a_runner_records_gates_until_its_operation_commits(bench: GatedBench) -> None:
    operation_id = bench.intend(splitting(0)).operation.operation_id
    bench.run_until(operation_id, OperationState.FENCING)
    assert note_closed(bench, operation_id) == {1: "closed", 2: "closed"}

    bench.run_until(operation_id, OperationState.COMMITTED)
    assert bench.operation(operation_id).state.is_live
    assert note_closed(bench, operation_id) == {}


def test_a_runner_records_no_gate_of_an_operation_that_was_aborted(bench: GatedBench) -> None:
    """The reserved segments never become part of the layout, so no keeper would open their gates."""
    intent = bench.intend(splitting(0))
    bench.run_until(intent.operation.operation_id, OperationState.PREPARED)
    bench.execute("UPDATE cleave.operation SET deadline = clock_timestamp(), row_version = row_version + 1")
    assert bench.finish(intent).state is OperationState.ABORTED

    assert note_closed(bench, intent.operation.operation_id) == {}


def test_a_gate_that_was_closed_again_is_not_recorded_as_open(bench: GatedBench) -> None:
    bench.reshape(splitting(0))
    with bench.store.transaction() as tx:
        assert gates.make_ready(tx, key(bench), [1, 2], opening_seconds=0.0) == [1, 2]
        gates.close(tx, key(bench), [1])

    with bench.store.transaction() as tx:
        assert gates.note_opened(tx, key(bench), 1) is None
        assert gates.note_opened(tx, key(bench), 2) is not None

    assert bench.gate_rows() == {1: "closed", 2: "open"}


def test_a_gate_is_recorded_as_open_once(bench: GatedBench) -> None:
    bench.reshape(splitting(0))
    with bench.store.transaction() as tx:
        gates.make_ready(tx, key(bench), [1], opening_seconds=0.0)
        assert gates.note_opened(tx, key(bench), 1) is not None
        assert gates.note_opened(tx, key(bench), 1) is None
        assert gates.make_ready(tx, key(bench), [1, 2], opening_seconds=0.0) == [2], (
            "an open gate is not opened"
        )


def test_an_opening_and_a_pause_of_a_server_whose_clock_was_ahead_end_soon(bench: GatedBench) -> None:
    """The keeper has died, and no call can last as long."""
    bench.reshape(splitting(0))
    with bench.store.transaction() as tx:
        gates.make_ready(tx, key(bench), [1], opening_seconds=3600.0)
        gates.make_ready(tx, key(bench), [2], opening_seconds=100.0)
        evaluations.defer(tx, [bench.topic_id], 3600.0)
        held_topics.doubt(tx, [bench.topic_id])

        assert held_topics.verify(tx, [bench.topic_id]) == [bench.topic_id]

    left = "SELECT round(extract(epoch FROM opening_until - clock_timestamp()), -1) FROM cleave.gate ORDER BY segment_id"
    assert bench.rows(left) == [(120,), (100,)]
    paused = "SELECT round(extract(epoch FROM not_before - clock_timestamp()), -1) FROM cleave.evaluation"
    assert bench.scalar(paused) == 60


def test_the_longest_opening_holds_a_seek_of_its_own_subscription_up(bench: GatedBench) -> None:
    """A keeper that comes later and opens for a shorter time does not shorten what the first one may take."""
    bench.subscribe_standard("audit")
    bench.reshape(splitting(0))
    with bench.store.transaction() as tx:
        gates.make_ready(tx, key(bench), [1], opening_seconds=3600.0)
        gates.make_ready(tx, key(bench), [1], opening_seconds=0.0)

    with bench.store.transaction() as tx:
        gates.demand_no_opening(tx, key(bench, "audit"))
        with pytest.raises(HeldUp, match=r"a gate of subscription billing of .* is being opened"):
            gates.demand_no_opening(tx, key(bench))

        gates.note_opened(tx, key(bench), 1)
        gates.demand_no_opening(tx, key(bench))


def test_nothing_waits_behind_a_segment_that_was_pruned(bench: GatedBench) -> None:
    def behind() -> list[int]:
        with bench.store.transaction() as tx:
            return [log.segment_id for log in gates.behind_read_by(tx, key(bench))]

    bench.reshape(splitting(0))
    assert behind() == [1, 2]

    bench.read(0)
    bench.keep()
    bench.settle(collects=True)

    assert behind() == []
