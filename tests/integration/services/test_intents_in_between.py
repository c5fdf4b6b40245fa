"""Intents of people and of the autoscaler on topics that move in between: planned again, refused by name, or left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from benchmarks.fleet import insert_fleet
from controller.domain.decision import Lane
from controller.domain.errors import Conflict, LostRace, TopicNotLive
from controller.domain.evaluation_input import Capabilities
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import Reshape
from controller.services import autoscaler, segment_admin, topic_admin
from controller.services.segment_admin import UNLOCKED_ATTEMPTS, splitting
from controller.store.decisions.evaluation_inputs import LockedTopic
from controller.store.journal import reshape_intents
from controller.store.journal.reshape_intents import ReshapeDraft
from tests.support.bench import TOPIC, Bench
from tests.support.passes import HOT, LOAD, WARM, decisions, owed, register, report, run

# What people ask for.


def test_a_topic_that_changes_all_the_time_is_locked_in_the_end(bench: Bench) -> None:
    topic_id, locked = bench.topic_with(segments=2), list[bool]()
    change = "UPDATE cleave.topic SET row_version = row_version + 1 WHERE topic_id = :id"
    lock = "SELECT FROM cleave.topic WHERE topic_id = :id FOR NO KEY UPDATE NOWAIT"

    def planner(layout: SegmentLayout, max_buckets: int) -> Reshape:
        try:
            bench.execute(lock, id=topic_id)
        except LostRace:
            locked.append(True)
        else:
            locked.append(False)
            bench.execute(change, id=topic_id)
        return splitting(0)(layout, max_buckets)

    bench.intend(planner)

    assert locked == [False] * UNLOCKED_ATTEMPTS + [True]


def test_a_key_used_for_another_topic_since_the_look_is_refused(bench: Bench) -> None:
    bench.topic_with()
    request = bench.request("k")

    def planner(layout: SegmentLayout, max_buckets: int) -> Reshape:
        options = {"segments": 1, "data_plane": bench.plane.name}
        topic_admin.create_topic(bench.store, bench.planes, f"{TOPIC}-other", request, **options)
        return splitting(0)(layout, max_buckets)

    with pytest.raises(Conflict, match=r"k was used for create of .*take a fresh key"):
        bench.intend(planner, request)


def test_a_topic_being_deleted_takes_no_reshape(bench: Bench) -> None:
    bench.topic_with()
    topic_admin.delete_topic(bench.store, TOPIC, bench.request())

    with pytest.raises(TopicNotLive, match="is deleting"):
        bench.intend(splitting(0))


# What the autoscaler decides.


def test_one_intent_that_cannot_be_written_takes_no_other_with_it(bench: Bench) -> None:
    """They are written by one statement, which fails as a whole."""
    bench.store.in_transaction(insert_fleet, 3, 1, rate=HOT)
    bench.topic_with()
    next_id = "SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END FROM cleave.decision_id_seq"
    bench.intend(splitting(0), bench.request(f"decision-{bench.scalar(next_id)}-0"))
    bench.execute(
        "UPDATE cleave.evaluation SET not_before = 'infinity' WHERE topic_id = :id", id=bench.topic_id
    )

    result = run(bench, LOAD)

    assert (len(result.operation_ids), len(result.still_dirty)) == (2, 1)


def test_several_acts_of_one_decision_stand_or_fall_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(bench.plane), "capabilities", Capabilities(max_children=64, shared_buckets=True))
    bench.topic_with(2)
    report(bench, {0: 10.0, 1: 20.0})
    for name in "abcdefghij":
        register(bench, name)
    naming, named = bench.plane.backing_topic, list[str]()

    def second_is_taken(topic: str, descriptor: str) -> str:
        named.append(descriptor)
        return naming(topic, descriptor) if len(named) == 1 else bench.log_of(0)

    monkeypatch.setattr(bench.runner_plane, "backing_topic", second_is_taken)

    result = run(bench, {Lane.CONSUMER})

    assert len(named) == 2
    assert (result.operation_ids, result.still_dirty) == ((), (bench.topic_id,))
    assert (bench.live_operations(), decisions(bench)) == ([], [])


def unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line, that what moved is decided about again, is out of order."""
    monkeypatch.setattr(LockedTopic, "is_unmoved", lambda _self, _layout: True)


def test_a_decision_on_a_segment_taken_meanwhile_is_left_for_the_next_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})
    reading = autoscaler.batch.evaluation_inputs.load_evaluation_inputs

    def read_then_be_overtaken(
        tx: Connection, topic_ids: Collection[int], capabilities: Any, **_: Any
    ) -> Any:
        found = reading(tx, topic_ids, capabilities)
        bench.intend(segment_admin.splitting(0))
        return found

    unnoticed(monkeypatch)
    monkeypatch.setattr(autoscaler.batch.evaluation_inputs, "load_evaluation_inputs", read_then_be_overtaken)

    result = run(bench, LOAD)

    assert (result.operation_ids, result.still_dirty) == ((), (bench.topic_id,))
    assert owed(bench)


def test_one_busy_topic_leaves_the_batch_one_statement(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draft is not written at all; the others' are, at once."""
    bench.store.in_transaction(insert_fleet, 3, 1, rate=HOT)
    reading, writing = autoscaler.batch.evaluation_inputs.load_evaluation_inputs, reshape_intents.write
    written: list[int] = []

    def read_then_be_overtaken(
        tx: Connection, topic_ids: Collection[int], capabilities: Any, **_: Any
    ) -> Any:
        found = reading(tx, topic_ids, capabilities)
        segment_admin.submit(
            bench.store, bench.planes, "topic://bench/n0/t1", splitting(0), bench.request("person")
        )
        return found

    def write(tx: Connection, drafts: Sequence[ReshapeDraft]) -> Any:
        written.append(len(drafts))
        return writing(tx, drafts)

    unnoticed(monkeypatch)
    monkeypatch.setattr(autoscaler.batch.evaluation_inputs, "load_evaluation_inputs", read_then_be_overtaken)
    monkeypatch.setattr(reshape_intents, "write", write)

    result = run(bench, LOAD)

    assert (len(result.operation_ids), len(result.still_dirty)) == (2, 1)
    assert written == [1, 2]  # the one in between, and the batch


def test_a_decision_on_a_layout_of_the_past_is_left_for_the_next_pass(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with(2)
    report(bench, {0: HOT, 1: WARM})
    reading = autoscaler.batch.evaluation_inputs.load_evaluation_inputs
    with bench.store.transaction() as tx:
        capabilities = {bench.plane.name: bench.plane.capabilities}
        past = reading(tx, [bench.topic_id], capabilities)
    bench.reshape(splitting(0))
    unnoticed(monkeypatch)
    monkeypatch.setattr(autoscaler.batch.evaluation_inputs, "load_evaluation_inputs", lambda *_, **__: past)

    result = run(bench, LOAD)

    assert (result.operation_ids, result.still_dirty) == ((), (bench.topic_id,))
    assert owed(bench)
