"""Calls that reach the broker later than anybody thought, and looks that are older than what is known by now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text

from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.errors import TopicNotFound, Unsupported
from controller.domain.operation import OperationState
from controller.domain.reshape import ReshapeKind
from controller.services import mirror, segment_admin, topic_admin
from controller.services.operation_runner import Outcome, RunnerContext, run_operation
from controller.store.journal import operations
from controller.store.journal.request_keys import Intent
from controller.store.postgres.engine import Store
from controller.store.topics import layouts, topics
from tests.integration.pulsar_scalable.conftest import PLANE, Finish, request
from tests.support.faulty_data_plane import FaultyDataPlane

SET_BY_SOMEBODY = {"enabled": True, "maxSegments": 7}
_TAKEN_OVER = """
    UPDATE cleave.operation SET claim_expires_at = '-infinity', row_version = row_version + 1,
           deadline = CASE WHEN :gives_up THEN clock_timestamp() ELSE deadline END
     WHERE operation_id = :operation_id
"""


def late_runner(
    store: Store, keeper: PulsarScalableDataPlane, call: str, meanwhile: Callable[[], object]
) -> RunnerContext:
    """One that sleeps before its first call of that name, while `meanwhile` happens."""
    plane, slept = FaultyDataPlane(keeper), list[str]()

    def sleep(name: str, _number: int) -> None:
        if name == call and not slept:
            slept.append(name)
            meanwhile()

    plane.before_call = sleep
    return RunnerContext(
        store=store, planes={PLANE: plane.as_data_plane()}, runner_id="late", lease_seconds=90.0
    )


def take_over(store: Store, intent: Intent, *, gives_up: bool) -> None:
    """The claim is anybody's from now on; `gives_up`: and the time for the operation is over."""
    with store.transaction() as tx:
        parameters = {"operation_id": intent.operation.operation_id, "gives_up": gives_up}
        tx.execute(text(_TAKEN_OVER), parameters)


def mirrors_left(store: Store) -> int:
    with store.transaction() as tx:
        return int(tx.execute(text("SELECT count(*) FROM cleave.mirror")).scalar_one())


@pytest.mark.parametrize("call", ["auto_scaler", "set_auto_scaler"])
def test_taking_over_late_what_others_gave_up_leaves_the_brokers_controller_on(
    call: str, store: Store, keeper: PulsarScalableDataPlane, topic: str, finish: Finish
) -> None:
    intent = topic_admin.attach_topic(store, {PLANE: keeper}, topic, request("attach"), data_plane=PLANE)

    def give_up() -> None:
        take_over(store, intent, gives_up=True)
        assert finish(intent) is OperationState.ABORTED

    outcome = run_operation(late_runner(store, keeper, call, give_up), intent.operation.operation_id)
    assert outcome is Outcome.FENCED_OUT
    assert keeper.auto_scaler(topic) == SET_BY_SOMEBODY
    assert mirrors_left(store) == 0


def test_taking_over_late_what_was_attached_and_detached_leaves_the_brokers_controller_on(
    store: Store, keeper: PulsarScalableDataPlane, topic: str, finish: Finish
) -> None:
    intent = topic_admin.attach_topic(store, {PLANE: keeper}, topic, request("attach"), data_plane=PLANE)

    def come_and_go() -> None:
        take_over(store, intent, gives_up=False)
        assert finish(intent) is OperationState.DONE
        assert finish(topic_admin.detach_topic(store, topic, request("back"))) is OperationState.DONE

    late = late_runner(store, keeper, "set_auto_scaler", come_and_go)
    assert run_operation(late, intent.operation.operation_id) is Outcome.FENCED_OUT
    assert keeper.auto_scaler(topic) == SET_BY_SOMEBODY


def test_taking_over_late_what_was_attached_anew_leaves_the_brokers_controller_off(
    store: Store, keeper: PulsarScalableDataPlane, topic: str, finish: Finish
) -> None:
    intent = topic_admin.attach_topic(store, {PLANE: keeper}, topic, request("attach"), data_plane=PLANE)

    def come_and_go_and_come() -> None:
        take_over(store, intent, gives_up=True)
        assert finish(intent) is OperationState.ABORTED
        again = topic_admin.attach_topic(store, {PLANE: keeper}, topic, request("again"), data_plane=PLANE)
        assert finish(again) is OperationState.DONE

    late = late_runner(store, keeper, "set_auto_scaler", come_and_go_and_come)
    assert run_operation(late, intent.operation.operation_id) is Outcome.FENCED_OUT
    assert keeper.auto_scaler(topic) == {"enabled": False}
    assert finish(topic_admin.detach_topic(store, topic, request("back"))) is OperationState.DONE
    assert keeper.auto_scaler(topic) == SET_BY_SOMEBODY


def test_the_journal_says_what_will_be_restored_although_the_step_was_begun_twice(
    store: Store, keeper: PulsarScalableDataPlane, topic: str, finish: Finish
) -> None:
    intent = topic_admin.attach_topic(store, {PLANE: keeper}, topic, request("attach"), data_plane=PLANE)
    context = RunnerContext(
        store=store,
        planes={PLANE: keeper},
        runner_id="first",
        lease_seconds=90.0,
        checkpoint=lambda name: (
            take_over(store, intent, gives_up=False) if name == "take-over:before" else None
        ),
    )
    assert run_operation(context, intent.operation.operation_id) is Outcome.FENCED_OUT
    assert finish(intent) is OperationState.DONE
    with store.transaction() as tx:
        statement = (
            "SELECT detail -> 'auto_scaler_before' FROM inspect.operation_steps WHERE step = 'take-over'"
        )
        assert tx.execute(text(statement)).scalar_one() == SET_BY_SOMEBODY


def test_a_call_that_was_lost_and_arrives_before_the_next_one_is_the_act(
    store: Store, keeper: PulsarScalableDataPlane, attached: str
) -> None:
    """The broker refuses the second call, since the segment is sealed: by the first one."""
    intent = segment_admin.submit(
        store, {PLANE: keeper}, attached, segment_admin.splitting(0), request("try")
    )
    late = late_runner(
        store, keeper, "ask_reshape", lambda: keeper.ask_reshape(attached, ReshapeKind.SPLIT, [0], 1)
    )
    run_operation(late, intent.operation.operation_id)

    with store.transaction() as tx:
        assert operations.get_operation(tx, intent.operation.operation_id).state is OperationState.DONE
    assert keeper.read_layout(attached).epoch == 1


def test_a_commit_whose_look_is_older_than_the_rows_is_no_topic_made_again(
    store: Store, keeper: PulsarScalableDataPlane, attached: str
) -> None:
    """The mirror looks later, after a split by somebody else, and writes both down before the operation commits."""
    ours = segment_admin.submit(store, {PLANE: keeper}, attached, segment_admin.splitting(0), request("try"))

    def look_later(name: str) -> None:
        if name == "commit:before":
            keeper.ask_reshape(attached, ReshapeKind.SPLIT, [1], 1)
            mirror.follow(store, {PLANE: keeper}, ours.operation.topic_id)

    context = RunnerContext(
        store=store, planes={PLANE: keeper}, runner_id="first", lease_seconds=90.0, checkpoint=look_later
    )
    assert run_operation(context, ours.operation.operation_id) is Outcome.FINISHED

    with store.transaction() as tx:
        here = layouts.load_layout(tx, topics.find_topic(tx, attached).topic_id)
        found = tx.execute(
            text("SELECT operation_id FROM cleave.layout_change WHERE epoch > 0 ORDER BY epoch")
        )
        assert list(found.scalars()) == [ours.operation.operation_id, None]
    assert here.segments == keeper.read_layout(attached).segments


def test_what_this_broker_has_no_call_for_is_given_up_at_once(
    store: Store, keeper: PulsarScalableDataPlane, attached: str, finish: Finish
) -> None:
    with pytest.raises(Unsupported, match="rebucket"):
        keeper.ask_reshape(attached, ReshapeKind.REBUCKET, [0], 8)
    intent = segment_admin.submit(
        store, {PLANE: keeper}, attached, segment_admin.rebucketing(0, 8), request("try")
    )
    assert finish(intent) is OperationState.ABORTED


def test_a_rebucket_of_a_missing_topic_says_that_it_is_missing(keeper: PulsarScalableDataPlane) -> None:
    with pytest.raises(TopicNotFound):
        keeper.ask_reshape("topic://public/default/never-made", ReshapeKind.REBUCKET, [0], 8)
