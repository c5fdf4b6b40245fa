"""Topics whose layout a broker keeps, as rows: attached, followed epoch by epoch, and left as they were."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest

from controller.clock import to_ms
from controller.dataplane.layout_keeper import LayoutKeeper
from controller.domain.decision import CONSUMER_COUNT
from controller.domain.errors import (
    DataPlaneUnavailable,
    InvalidInput,
    InvariantViolated,
    LostRace,
    TopicNotLive,
)
from controller.domain.layout import SegmentLayout
from controller.domain.operation import Operation, OperationState
from controller.domain.operation_steps import Step, moves_of
from controller.domain.policy import PolicyOverride
from controller.domain.reshape import Reshape, plan_merge, plan_split
from controller.services import mirror
from controller.store.decisions import candidates
from controller.store.decisions.candidates import CandidateState
from controller.store.journal import (
    claims,
    deletion_entries,
    mirror_intents,
    mirror_repairs,
    operations,
    reshape_intents,
    topic_intents,
)
from controller.store.journal.reshape_intents import ReshapeDraft
from controller.store.journal.steps import StepRecord
from controller.store.mirrors import mirrored_layouts, mirrors
from controller.store.postgres.clock import database_now
from controller.store.topics import layouts, topics
from controller.store.topics.topics import TopicState
from tests.support.lineages import lineage_of_merges
from tests.support.live_operations import live_operations
from tests.support.plans import statements_of
from tests.support.store_driver import SOMEBODY_WAITS, StoreDriver, request
from tests.support.waiting import wait_until

_S = OperationState
COMMIT = (Step.COMMIT, _S.COMMITTED)
NAME = "topic://public/default/kept"
SET_BY_SOMEBODY = {"enabled": True, "maxSegments": 7}
FIRST = SegmentLayout.initial(3, now=0)
"""What the broker's layout is when the topic is attached."""


def intend_attach(driver: StoreDriver, name: str = NAME) -> Operation:
    return driver.do(
        mirror_intents.intend_attach, name, data_plane="pulsar_scalable", request=request()
    ).operation


def to_the_commit(driver: StoreDriver, intended: Operation) -> Operation:
    """Claimed, and whatever it does on the broker is done."""
    claimed = driver.claim(intended)
    step, leads_to = moves_of(claimed)[claimed.state]
    return driver.record(StepRecord(claimed, ((step, leads_to),)))


def commit(driver: StoreDriver, ready: Operation, layout: SegmentLayout | None = None) -> Operation:
    """With the layout as it was read, and to the end."""
    detail = {} if layout is None else {"layout": layout.to_metadata()}
    committed = driver.record(StepRecord(ready, (COMMIT,), detail))
    done = driver.record(StepRecord(committed, ((Step.FINISH, _S.DONE),)))
    assert done.epoch is not None
    return done


def attach(driver: StoreDriver, layout: SegmentLayout = FIRST, name: str = NAME) -> int:
    intended = intend_attach(driver, name)
    driver.do(mirrors.remember_policy, intended.topic_id, SET_BY_SOMEBODY)
    return commit(driver, to_the_commit(driver, intended), layout).topic_id


def intend(driver: StoreDriver, topic_id: int, planned: Reshape, reason: str = "test") -> Operation:
    wanted = replace(request(), reason=reason)
    view = driver.do(reshape_intents.look, topic_id, wanted.request_key)
    return driver.do(reshape_intents.intend, ReshapeDraft(view, planned, wanted, None)).operation


def history(driver: StoreDriver) -> list[tuple[int, str, int | None]]:
    """Epoch, kind and operation behind it."""
    found = driver.sql("SELECT epoch, kind, operation_id FROM cleave.layout_change ORDER BY topic_id, epoch")
    return [(epoch, kind, operation_id) for epoch, kind, operation_id in found]


def follow(driver: StoreDriver, topic_id: int, layout: SegmentLayout) -> None:
    """A look of the watch, which asks nothing."""
    with driver.store.transaction() as tx:
        mirrored_layouts.follow_layout(tx, topics.get_topic(tx, topic_id, lock=True), layout)


# What the broker's auto-scaler was set to.


@pytest.mark.parametrize("segments", [0, 65_537])
def test_a_topic_cannot_be_created_on_the_broker_with_more_segments_than_hashes_or_none(
    driver: StoreDriver, segments: int
) -> None:
    with pytest.raises(InvalidInput, match="give 1 to 65536"):
        driver.do(
            mirror_intents.intend_attach,
            NAME,
            data_plane="pulsar_scalable",
            segments=segments,
            request=request(),
        )

    assert driver.sql("SELECT count(*) FROM cleave.topic") == [(0,)]


def test_the_first_word_about_the_brokers_setting_stands(driver: StoreDriver) -> None:
    """Whoever looks again, after it was turned off, sees its own setting."""
    topic_id = intend_attach(driver).topic_id
    driver.do(mirrors.remember_policy, topic_id, SET_BY_SOMEBODY)

    again = driver.do(mirrors.remember_policy, topic_id, {"enabled": False})

    assert again.policy_before == SET_BY_SOMEBODY


def test_nothing_is_remembered_of_a_topic_that_is_given_up(driver: StoreDriver) -> None:
    """Nobody would put the setting back. Whoever comes at the same time waits to see what becomes of it."""
    topic_id = intend_attach(driver).topic_id

    with ThreadPoolExecutor(1) as pool:
        with driver.store.transaction() as tx:
            topic_intents.intend_delete(tx, topic_id, request())
            late = pool.submit(driver.do, mirrors.remember_policy, topic_id, SET_BY_SOMEBODY)
            wait_until(lambda: late.done() or driver.sql(SOMEBODY_WAITS), message="the late one waits")
        with pytest.raises(LostRace, match="no longer being attached"):
            late.result()
    with pytest.raises(LostRace, match="no longer being attached"):
        driver.do(mirrors.remember_policy, topic_id, SET_BY_SOMEBODY)


def test_of_two_looks_the_one_on_an_older_row_says_nothing(driver: StoreDriver) -> None:
    topic_id = attach(driver)
    seen = driver.do(mirrors.get_mirror, topic_id)
    assert seen is not None
    driver.do(mirrors.record_look, seen, "somebody turned it on")

    with pytest.raises(LostRace, match="read it again"):
        driver.do(mirrors.record_look, seen, None)

    assert driver.sql("SELECT paused_reason FROM cleave.mirror") == [("somebody turned it on",)]


# Coming and going.


def test_an_attached_topic_is_what_was_read(driver: StoreDriver) -> None:
    topic_id = attach(driver, FIRST.split(0, 1))

    layout = driver.do(layouts.load_layout, topic_id)
    assert (layout.epoch, set(layout.segments)) == (1, {0, 1, 2, 3, 4})
    assert driver.do(topics.get_topic, topic_id).state is TopicState.LIVE
    assert [(epoch, kind) for epoch, kind, _ in history(driver)] == [(1, "mirrored")]


def stamps(driver: StoreDriver, topic_id: int) -> tuple[int | None, ...]:
    """Of the last split, merge and rebucket, in milliseconds."""
    topic = driver.do(topics.get_topic, topic_id)
    found = (topic.last_split_at, topic.last_merge_at, topic.last_rebucket_at)
    return tuple(None if at is None else to_ms(at) for at in found)


def test_the_brokers_cooldowns_go_on_when_a_topic_is_attached(driver: StoreDriver) -> None:
    """The broker keeps none either: a new leader reads them from when segments were made."""
    topic_id = attach(driver, FIRST.split(0, 1_000).merge(1, 2, 2_000).rebucket(3, 8, 3_000))

    assert stamps(driver, topic_id) == (1_000, 2_000, 3_000)


def test_a_topic_that_was_never_reshaped_has_no_cooldowns(driver: StoreDriver) -> None:
    assert stamps(driver, attach(driver)) == (None, None, None)


def test_a_split_whose_parent_was_pruned_between_two_looks_has_its_cooldown(driver: StoreDriver) -> None:
    topic_id = attach(driver, FIRST.split(0, 1_000))
    follow(driver, topic_id, FIRST.split(0, 1_000).split(1, 2_000).prune(1))
    follow(driver, topic_id, FIRST.split(0, 1_000).split(1, 2_000).prune(1).prune(0))

    assert stamps(driver, topic_id) == (2_000, None, None)


def test_a_look_takes_as_many_statements_however_long_the_lineage_is(driver: StoreDriver) -> None:
    def statements(rounds: int) -> int:
        known = lineage_of_merges(rounds)
        topic_id = attach(driver, known, f"{NAME}-{rounds}")
        with driver.store.transaction() as tx:
            topic = topics.get_topic(tx, topic_id, lock=True)
            after = known.split(3 * rounds, 1_000)
            return len(statements_of(tx, lambda: mirrored_layouts.follow_layout(tx, topic, after)))

    assert statements(10) == statements(1)


def test_attaching_a_topic_that_is_being_deleted_looks_again(driver: StoreDriver) -> None:
    ready = to_the_commit(driver, intend_attach(driver))
    driver.do(topic_intents.intend_delete, ready.topic_id, request())

    with pytest.raises(LostRace, match="is deleting by now"):
        driver.record(StepRecord(ready, (COMMIT,), {"layout": FIRST.to_metadata()}))


def test_only_a_live_topic_is_given_back(driver: StoreDriver) -> None:
    topic_id = attach(driver)
    driver.do(topic_intents.intend_delete, topic_id, request())

    with pytest.raises(TopicNotLive, match="only a live topic can be detached"):
        driver.do(mirror_intents.intend_detach, topic_id, request())


@pytest.mark.parametrize("leaves_by", ["detach", "delete"])
def test_a_topic_is_left_when_nothing_else_of_it_lives_and_its_logs_stay_the_brokers(
    driver: StoreDriver, leaves_by: str
) -> None:
    topic_id = attach(driver)
    older = intend(driver, topic_id, plan_split(FIRST, 0))
    act = mirror_intents.intend_detach if leaves_by == "detach" else topic_intents.intend_delete
    leaving = to_the_commit(driver, driver.do(act, topic_id, request()).operation)

    with pytest.raises(LostRace, match="1 older operation"):
        driver.record(StepRecord(leaving, (COMMIT,)))
    driver.run(older)
    commit(driver, leaving)

    assert driver.do(operations.get_operation, older.operation_id).state is _S.ABORTED
    assert driver.do(topics.get_topic, topic_id).state is TopicState.DELETED
    assert driver.do(deletion_entries.list_open) == []


@pytest.mark.parametrize("leaves_by", ["detach", "delete"])
def test_the_candidate_of_a_topic_that_is_left_is_withdrawn(driver: StoreDriver, leaves_by: str) -> None:
    topic_id = attach(driver)
    driver.do(
        candidates.propose, topic_id, PolicyOverride(max_segments=9), proposed_by="ada", reason="to see"
    )
    act = mirror_intents.intend_detach if leaves_by == "detach" else topic_intents.intend_delete

    commit(driver, to_the_commit(driver, driver.do(act, topic_id, request()).operation))

    ended = driver.do(candidates.newest, topic_id)
    assert ended is not None
    assert ended.ended_at is not None
    assert (ended.state, ended.ended_by, ended.outcome) == (
        CandidateState.WITHDRAWN,
        "tester",
        "the topic was deleted",
    )


@pytest.mark.parametrize("leaves_by", ["detach", "delete"])
def test_a_topic_that_its_broker_does_not_let_go_is_live_again(driver: StoreDriver, leaves_by: str) -> None:
    topic_id = attach(driver)
    act = mirror_intents.intend_detach if leaves_by == "detach" else topic_intents.intend_delete

    driver.give_up(driver.do(act, topic_id, request()).operation)

    assert driver.do(topics.get_topic, topic_id).state is TopicState.LIVE


def test_a_topic_whose_attachment_and_deletion_were_both_aborted_is_not_live(driver: StoreDriver) -> None:
    """It has no layout. Its name is free, as after any aborted attachment."""
    attaching = intend_attach(driver)
    deleting = driver.do(topic_intents.intend_delete, attaching.topic_id, request()).operation
    assert driver.run(attaching).state is _S.ABORTED

    driver.give_up(deleting)

    assert driver.do(topics.get_topic, attaching.topic_id).state is TopicState.DELETED
    assert driver.sql("SELECT count(*) FROM cleave.mirror") == [(0,)]
    again = attach(driver)
    assert driver.do(topics.get_topic, again).state is TopicState.LIVE


def test_a_topic_attached_anew_goes_on_counting_whatever_its_broker_begins_with(driver: StoreDriver) -> None:
    first = attach(driver, FIRST.split(0, 1))
    commit(driver, to_the_commit(driver, driver.do(mirror_intents.intend_detach, first, request()).operation))

    again = attach(driver)

    assert driver.do(topics.get_topic, again).next_segment_id == 5
    assert set(driver.do(layouts.load_layout, again).segments) == {0, 1, 2}


# Epochs.


@pytest.mark.parametrize(("reason", "for_consumers"), [("msgRateIn", False), (CONSUMER_COUNT, True)])
def test_a_reshape_the_broker_did_is_ours_in_history_with_its_cooldown(
    driver: StoreDriver, reason: str, for_consumers: bool
) -> None:
    topic_id = attach(driver)
    split = intend(driver, topic_id, plan_split(FIRST, 0), reason)

    done = commit(driver, to_the_commit(driver, split), FIRST.split(0, 1))

    assert done.epoch == 1
    assert history(driver)[1:] == [(1, "split", split.operation_id)]
    [(intended_at,)] = driver.sql(
        "SELECT intended_at FROM cleave.operation WHERE operation_id = :id", id=split.operation_id
    )
    topic = driver.do(topics.get_topic, topic_id)
    assert (topic.last_split_at, topic.last_merge_at) == (intended_at, None)
    assert topic.last_consumer_act_at == (intended_at if for_consumers else None)
    assert driver.do(layouts.load_layout, topic_id).segments == FIRST.split(0, 1).segments


def test_a_look_that_is_older_than_the_rows_is_no_topic_made_again(driver: StoreDriver) -> None:
    """The watch looks later, after an act of somebody else, and writes both down before the operation commits."""
    topic_id = attach(driver)
    ours = intend(driver, topic_id, plan_split(FIRST, 0))
    earlier = to_the_commit(driver, ours)
    follow(driver, topic_id, FIRST.split(0, 1).split(1, 2))

    assert commit(driver, earlier, FIRST.split(0, 1)).epoch == 1

    assert history(driver)[1:] == [(1, "split", ours.operation_id), (2, "mirrored", None)]


def claim_due(driver: StoreDriver, runner: str) -> list[int]:
    claimed = driver.do(claims.claim, runner=runner, lease_seconds=60.0, call_timeout_seconds=5.0, limit=8)
    return [one.operation.operation_id for one in claimed]


def test_reshapes_of_a_topic_are_claimed_one_after_the_other(driver: StoreDriver) -> None:
    """Overlapping calls for one topic leave segments without a log. Other topics do not wait."""
    topic_id = attach(driver)
    first, second = (intend(driver, topic_id, plan_split(FIRST, segment_id)) for segment_id in (0, 1))
    elsewhere = intend(driver, attach(driver, name=f"{NAME}-too"), plan_split(FIRST, 0))

    assert claim_due(driver, "a") == [first.operation_id]
    assert claim_due(driver, "b") == [elsewhere.operation_id]
    assert claim_due(driver, "c") == []
    with driver.store.transaction() as tx:
        assert (
            claims.claim(
                tx,
                runner="c",
                lease_seconds=60.0,
                call_timeout_seconds=5.0,
                operation_id=second.operation_id,
            )
            == []
        )


def test_a_reshape_that_is_put_off_keeps_its_topic(driver: StoreDriver) -> None:
    """Its last call may be under way. Who waits looks again soon, and is not due before."""
    topic_id = attach(driver)
    first, second = (intend(driver, topic_id, plan_split(FIRST, segment_id)) for segment_id in (0, 1))
    held = driver.claim(first, "a")
    driver.do(claims.record_failure, held, "a", "no answer", 3600.0)

    assert claim_due(driver, "b") == []
    before = driver.do(database_now)
    due = driver.do(claims.next_due, call_timeout_seconds=5.0)
    assert due is not None
    assert due >= before + timedelta(seconds=claims.TURN_SECONDS)
    driver.sql(
        "UPDATE cleave.operation SET not_before = '-infinity', row_version = row_version + 1 RETURNING 1"
    )
    assert claim_due(driver, "b") == [first.operation_id]
    [again] = driver.do(operations.read_operations, [first.operation_id])
    ready = driver.record(StepRecord(again, ((Step.RESHAPE_ON_BROKER, _S.FENCED),)), runner="b")
    assert claim_due(driver, "c") == []
    committed = driver.record(
        StepRecord(ready, (COMMIT,), {"layout": FIRST.split(0, 1).to_metadata()}), runner="b"
    )
    driver.record(StepRecord(committed, ((Step.FINISH, _S.DONE),)), runner="b")
    assert claim_due(driver, "c") == [second.operation_id]


def checked(driver: StoreDriver, topic_id: int) -> int:
    found = driver.do(mirrors.get_mirror, topic_id)
    assert found is not None
    return found.checked_epoch


def test_a_segment_without_a_log_is_split_once_and_the_check_goes_on(driver: StoreDriver) -> None:
    topic_id = attach(driver)
    busy = intend(driver, topic_id, plan_split(FIRST, 0))

    assert driver.do(mirror_repairs.note_check, topic_id, 0, (0, 1)) == 1
    assert driver.do(mirror_repairs.note_check, topic_id, 0, (0, 1)) == 0
    assert checked(driver, topic_id) == -1
    live = driver.do(live_operations, topic_id)
    assert [(one.parent_ids, one.origin.value) for one in live] == [((1,), "reconciler"), ((0,), "manual")]
    assert live[1].operation_id == busy.operation_id

    assert driver.do(mirror_repairs.note_check, topic_id, 0, ()) == 0
    assert checked(driver, topic_id) == 0


def test_nothing_is_repaired_where_the_brokers_own_controller_is_on(driver: StoreDriver) -> None:
    topic_id = attach(driver)
    found = driver.do(mirrors.get_mirror, topic_id)
    assert found is not None
    driver.do(mirrors.record_look, found, "the auto-scaler is on")

    assert driver.do(mirror_repairs.note_check, topic_id, 0, (1,)) == 0
    assert driver.do(mirror_repairs.note_check, topic_id, 0, ()) == 0
    assert checked(driver, topic_id) == -1


def test_a_reshape_that_no_epoch_tells_of_is_not_committed(driver: StoreDriver) -> None:
    topic_id = attach(driver)
    ready = to_the_commit(driver, intend(driver, topic_id, plan_split(FIRST, 0)))

    with pytest.raises(InvariantViolated, match="no epoch up to 0 has its change"):
        driver.record(StepRecord(ready, (COMMIT,), {"layout": FIRST.to_metadata()}))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(plan_split(FIRST, 0), FIRST.rebucket(0, 8, 1)), (plan_merge(FIRST, 0, 1), FIRST.merge(1, 2, 1))],
    ids=["another kind", "other parents"],
)
def test_what_somebody_else_did_is_not_taken_for_ours(
    driver: StoreDriver, ours: Reshape, theirs: SegmentLayout
) -> None:
    topic_id = attach(driver)
    intend(driver, topic_id, ours)

    follow(driver, topic_id, theirs)

    assert history(driver)[1:] == [(1, "mirrored", None)]


def test_what_the_broker_pruned_is_pruned_here_and_an_epoch_comes_once(driver: StoreDriver) -> None:
    topic_id = attach(driver)
    after = FIRST.split(0, 1).prune(0)

    for _ in range(2):
        follow(driver, topic_id, after)

    layout = driver.do(layouts.load_layout, topic_id)
    assert (layout.epoch, set(layout.segments)) == (after.epoch, set(after.segments))
    assert history(driver)[-1][0] == after.epoch
    assert driver.sql("SELECT segment_id, state FROM cleave.segment WHERE pruned_epoch IS NOT NULL") == [
        (0, "SEALED")
    ]


def test_topics_whose_broker_does_not_answer_keep_no_other_from_being_followed(
    driver: StoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, other = (attach(driver, name=f"topic://public/default/{name}") for name in ("silent", "other"))
    followed: list[int] = []

    def follow(_store: object, _planes: object, topic_id: int) -> tuple[tuple[()], None]:
        followed.append(topic_id)
        if topic_id == silent:
            raise DataPlaneUnavailable("no answer")
        return (), None

    monkeypatch.setattr(mirror, "follow", follow)
    planes, failed = {"pulsar_scalable": Mock(spec=LayoutKeeper)}, dict[int, float]()
    for _ in range(2):
        mirror.follow_due(driver.store, planes, interval_seconds=0.0, limit=1, failed=failed)

    assert followed == [silent, other]
    assert failed.keys() == {silent}

    monkeypatch.setattr(mirror, "FAILING_SECONDS", 0.0)
    mirror.follow_due(driver.store, planes, interval_seconds=0.0, failed=failed)
    assert followed == [silent, other, other], "no time is left for the topic that failed"


def test_a_topic_that_left_while_its_check_failed_is_forgotten(
    driver: StoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = attach(driver)
    monkeypatch.setattr(mirror, "follow", Mock(side_effect=DataPlaneUnavailable("no answer")))
    planes, failed = {"pulsar_scalable": Mock(spec=LayoutKeeper)}, dict[int, float]()

    def follow_due(limit: int) -> None:
        mirror.follow_due(driver.store, planes, interval_seconds=0.0, limit=limit, failed=failed)

    follow_due(10)
    assert failed.keys() == {silent}
    driver.do(mirror_intents.intend_detach, silent, request())
    follow_due(0)
    assert failed.keys() == {silent}, "a full list of due topics may lack a topic that is due"
    follow_due(10)
    assert failed == {}
