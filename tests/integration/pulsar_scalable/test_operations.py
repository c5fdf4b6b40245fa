"""Operations on topics whose layout Pulsar 5 keeps: asked of a real broker, mirrored epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import Conflict, DataPlaneTimeout, TopicNotFound, Unsupported
from controller.domain.operation import OperationState
from controller.domain.reshape import ReshapeKind
from controller.services import mirror, segment_admin, topic_admin
from controller.services.operation_runner import RunnerContext, run_operation
from controller.store.journal import operations
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, topics
from tests.integration.pulsar_scalable.conftest import PLANE, Finish, request


def split(store: Store, keeper: PulsarScalableDataPlane, topic: str, segment_id: int) -> Any:
    planner = segment_admin.splitting(segment_id)
    return segment_admin.submit(store, {PLANE: keeper}, topic, planner, request("try"))


def history(store: Store, topic: str) -> list[tuple[Any, ...]]:
    with store.transaction() as tx:
        rows = tx.execute(
            text(
                "SELECT epoch, kind, origin, mirrored_from FROM inspect.layout_changes WHERE topic = :t ORDER BY epoch"
            ),
            {"t": topic},
        )
        return [tuple(row) for row in rows]


def mirrored(store: Store, topic: str) -> Any:
    with store.transaction() as tx:
        return layouts.load_layout(tx, topics.find_topic(tx, topic).topic_id)


def test_attaching_turns_the_brokers_own_controller_off_and_mirrors_the_layout(
    store: Store, keeper: PulsarScalableDataPlane, attached: str
) -> None:
    assert keeper.auto_scaler(attached) == {"enabled": False}
    here, there = mirrored(store, attached), keeper.read_layout(attached)
    assert here.segments == there.segments
    assert (here.epoch, here.next_segment_id) == (there.epoch, there.next_segment_id)
    with store.transaction() as tx:
        logs = (
            tx.execute(text("SELECT backing_topic FROM inspect.layout_now ORDER BY range_start"))
            .scalars()
            .all()
        )
    assert logs == [
        f"segment://{attached.removeprefix('topic://')}/{end}" for end in ("0000-7fff-0", "8000-ffff-1")
    ]


def test_a_split_is_done_by_the_broker_and_ours_in_the_history(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    assert finish(split(store, keeper, attached, 0)) is OperationState.DONE

    here, there = mirrored(store, attached), keeper.read_layout(attached)
    assert here.segments == there.segments
    assert [str(s) for s in here.active] == ["2 (0000-3fff)", "3 (4000-7fff)", "1 (8000-ffff)"]
    assert history(store, attached) == [(0, "mirrored", "manual", 0), (1, "split", "manual", None)]


def test_only_the_same_reshape_gets_the_operation_of_its_key(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    """The broker chooses the ids of the children, so the journal has their ranges only."""
    planes, once = {PLANE: keeper}, request("once")

    def submit(planner: segment_admin.Planner) -> Any:
        return segment_admin.submit(store, planes, attached, planner, once)

    first = submit(segment_admin.splitting(0))
    assert finish(first) is OperationState.DONE

    again = submit(segment_admin.splitting(0))
    assert (again.repeated, again.operation.operation_id) == (True, first.operation.operation_id)
    with pytest.raises(
        Conflict, match=r"segment 0 into 0000-3fff, 4000-7fff.*, not for rebucket of segment 0"
    ):
        submit(segment_admin.rebucketing(0, 8))


def test_what_others_do_is_mirrored_as_theirs_and_a_merge_of_ours_follows(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    keeper.ask_reshape(attached, ReshapeKind.SPLIT, [0], 1)
    keeper.ask_reshape(attached, ReshapeKind.SPLIT, [2], 1)
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, attached).topic_id
    steps, _ = mirror.follow(store, {PLANE: keeper}, topic_id)
    assert [step.kind for step in steps] == [ReshapeKind.SPLIT, ReshapeKind.SPLIT]

    merge = segment_admin.submit(
        store, {PLANE: keeper}, attached, segment_admin.merging(4, 5), request("join")
    )
    assert finish(merge) is OperationState.DONE
    assert history(store, attached) == [
        (0, "mirrored", "manual", 0),
        (1, "mirrored", "broker", 0),
        (2, "mirrored", "broker", 1),
        (3, "merge", "manual", None),
    ]
    assert mirrored(store, attached).segments == keeper.read_layout(attached).segments
    assert mirror.follow(store, {PLANE: keeper}, topic_id)[0] == ()


def test_a_segment_that_somebody_else_reshaped_first_is_given_up_with_a_sentence(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    intent = segment_admin.submit(
        store, {PLANE: keeper}, attached, segment_admin.merging(0, 1), request("too late")
    )
    keeper.ask_reshape(attached, ReshapeKind.SPLIT, [0], 1)

    assert finish(intent) is OperationState.ABORTED
    with store.transaction() as tx:
        reason = tx.execute(
            text(
                "SELECT detail ->> 'reason' FROM inspect.operation_steps WHERE operation_id = :id AND step = 'abort'"
            ),
            {"id": intent.operation.operation_id},
        ).scalar_one()
    assert "another program has reshaped segment(s)" in reason


@dataclass
class SilentBroker:
    """A broker that does what it is asked and never answers, or never hears."""

    keeper: PulsarScalableDataPlane
    hears: bool
    asked: int = 0

    def ask(self, *arguments: Any) -> None:
        self.asked += 1
        if self.hears:
            PulsarScalableDataPlane.ask_reshape(self.keeper, *arguments)
        raise DataPlaneTimeout("no answer")


def test_an_act_whose_answer_is_lost_is_settled_by_reading(
    store: Store,
    keeper: PulsarScalableDataPlane,
    attached: str,
    finish: Finish,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deaf = SilentBroker(keeper, hears=True)
    monkeypatch.setattr(keeper, "ask_reshape", deaf.ask)

    assert finish(split(store, keeper, attached, 0)) is OperationState.DONE
    assert deaf.asked == 1
    assert keeper.read_layout(attached).epoch == 1


def test_an_act_that_never_arrived_waits_and_is_asked_again(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = RunnerContext(store=store, planes={PLANE: keeper}, runner_id="test", lease_seconds=90.0)
    intent = split(store, keeper, attached, 0)
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "ask_reshape", SilentBroker(keeper, hears=False).ask)
        assert str(run_operation(context, intent.operation.operation_id)) == "deferred"
    assert keeper.read_layout(attached).epoch == 0
    with store.transaction() as tx:
        tx.execute(text("UPDATE cleave.operation SET not_before = '-infinity'"))
    # The first runner remembers its call, which may be under way still.
    another = RunnerContext(store=store, planes={PLANE: keeper}, runner_id="another", lease_seconds=90.0)
    run_operation(another, intent.operation.operation_id)
    with store.transaction() as tx:
        assert operations.get_operation(tx, intent.operation.operation_id).state is OperationState.DONE
    assert keeper.read_layout(attached).epoch == 1


def test_when_somebody_turns_the_brokers_controller_on_again_cleave_pauses_and_says_why(
    store: Store, keeper: PulsarScalableDataPlane, attached: str
) -> None:
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, attached).topic_id
    keeper.set_auto_scaler(attached, {"enabled": True})
    _, paused = mirror.follow(store, {PLANE: keeper}, topic_id)
    assert paused is not None
    assert "auto-scaler is on" in paused

    keeper.set_auto_scaler(attached, {"enabled": False})
    assert mirror.follow(store, {PLANE: keeper}, topic_id)[1] is None


def test_detaching_restores_what_the_brokers_controller_was_set_to(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    back = request("back")
    assert finish(topic_admin.detach_topic(store, attached, back)) is OperationState.DONE
    assert topic_admin.detach_topic(store, attached, back).operation.state is OperationState.DONE

    assert keeper.auto_scaler(attached) == {"enabled": True, "maxSegments": 7}
    assert len(keeper.read_layout(attached).active) == 2
    with store.transaction() as tx, pytest.raises(TopicNotFound):
        topics.find_topic(tx, attached)
    again = topic_admin.attach_topic(store, {PLANE: keeper}, attached, request("again"), data_plane=PLANE)
    assert finish(again) is OperationState.DONE


def test_a_topic_is_created_and_deleted_on_the_broker(
    store: Store, keeper: PulsarScalableDataPlane, topic: str, finish: Finish
) -> None:
    name = f"{topic}-new"
    created = topic_admin.create_topic(
        store, {PLANE: keeper}, name, request("new"), data_plane=PLANE, segments=3
    )
    assert finish(created) is OperationState.DONE
    assert len(keeper.read_layout(name).active) == 3

    assert finish(topic_admin.delete_topic(store, name, request("gone"))) is OperationState.DONE
    with pytest.raises(TopicNotFound):
        keeper.read_layout(name)


def test_attaching_what_the_broker_does_not_have_is_given_up_and_frees_the_name(
    store: Store, keeper: PulsarScalableDataPlane, finish: Finish
) -> None:
    name = "topic://public/default/never-made"
    intent = topic_admin.attach_topic(store, {PLANE: keeper}, name, request("typo"), data_plane=PLANE)

    assert finish(intent) is OperationState.ABORTED
    with store.transaction() as tx, pytest.raises(TopicNotFound):
        topics.find_topic(tx, name)


def test_a_cut_elsewhere_than_at_the_midpoint_is_refused(
    store: Store, keeper: PulsarScalableDataPlane, attached: str
) -> None:
    with pytest.raises(Unsupported, match="midpoint"):
        segment_admin.submit(
            store, {PLANE: keeper}, attached, segment_admin.splitting(0, at=[100]), request("odd")
        )


def test_what_the_engine_refuses_is_one_sentence_without_its_stack(
    keeper: PulsarScalableDataPlane, topic: str
) -> None:
    with pytest.raises(
        Conflict, match=r"split of segment 77 of .*: Segment not found: 77; read the layout again"
    ):
        keeper.ask_reshape(topic, ReshapeKind.SPLIT, [77], 1)
