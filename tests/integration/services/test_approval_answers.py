"""Acts that wait for a person, from the proposal to the operation, on a real database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from controller.actions.perform import DryRunStore
from controller.domain.approval_states import TRANSITIONS, ApprovalState, Subject
from controller.domain.decision import Lane, RefusalReason
from controller.domain.decision_replay import replay
from controller.domain.errors import (
    CleaveError,
    Conflict,
    InvalidInput,
    InvariantViolated,
    NotFound,
    Terminal,
)
from controller.domain.operation import OperationKind
from controller.domain.policy import PolicyOverride
from controller.services import approval_answers, segment_admin, topic_admin
from controller.services.approval_answers import ApprovalClock
from controller.store import approvals as approval_rows
from controller.store.approvals import ApprovalRow, NewApproval
from controller.store.topics import policies
from tests.support.approvals import answer_subject, pending
from tests.support.bench import Bench
from tests.support.passes import COLD, HOT, LOAD, decisions, owed, report, run

HOUR = timedelta(hours=1)


@pytest.fixture
def cold(bench: Bench) -> Iterator[Bench]:
    """A topic of two cold segments, whose merges wait."""
    bench.topic_with(2)
    marked(bench, approval_merges=True)
    report(bench, {0: COLD, 1: COLD}, cold_for=HOUR)
    yield bench
    bench.check_laws()


def marked(bench: Bench, **parameters: object) -> None:
    bench.store.in_transaction(policies.set_topic, bench.topic_id, PolicyOverride(**parameters))  # type: ignore[arg-type]


def waiting(bench: Bench) -> list[ApprovalRow]:
    return pending(bench.store)


def proposed(bench: Bench) -> ApprovalRow:
    """What a pass proposes; there is one such act."""
    assert run(bench).operation_ids == ()
    [row] = waiting(bench)
    return row


def say(bench: Bench, row: ApprovalRow, *, approve: bool = True, actor: str = "ada") -> ApprovalRow:
    [answered] = approval_answers.answer(
        bench.store, [row.approval_id], approve=approve, actor=actor, reason="seen"
    )
    return answered


def wind(bench: Bench, row: ApprovalRow, seconds: float) -> None:
    """The proposal, and its answer, are so much older; its row alone is told, past its guard."""
    back = "make_interval(secs => :s)"
    bench.execute("ALTER TABLE cleave.approval DISABLE TRIGGER USER")
    bench.execute(
        f"UPDATE cleave.approval SET proposed_at = proposed_at - {back}, expires_at = expires_at - {back},"
        f" answered_at = answered_at - {back} WHERE approval_id = :id",
        s=seconds,
        id=row.approval_id,
    )
    bench.execute("ALTER TABLE cleave.approval ENABLE TRIGGER USER")


def raised(bench: Bench) -> None:
    bench.execute("UPDATE cleave.evaluation SET input_version = input_version + 1")


def test_a_marked_merge_waits_and_is_told_once(cold: Bench) -> None:
    row = proposed(cold)

    assert (row.kind, row.segment_ids, row.parts, row.reason) == ("merge", (0, 1), 1, "cold")
    assert (row.action, row.proposed_by, row.default_answer) == (
        "merge segments 0, 1 into 1",
        "tests",
        "reject",
    )
    assert row.expires_at - row.proposed_at == pytest.approx(timedelta(days=1), abs=timedelta(seconds=1))
    [told] = decisions(cold)
    assert told.decision_id == row.decision_id
    assert [one["reason"] for one in told.refusals] == [RefusalReason.AWAITING_APPROVAL]
    for _ in range(2):
        raised(cold)
        assert run(cold).outcomes == ()
    assert [one.approval_id for one in waiting(cold)] == [row.approval_id]
    assert not owed(cold)


def test_what_was_approved_goes_with_the_next_pass_and_says_which_operation(cold: Bench) -> None:
    row = proposed(cold)

    answered = say(cold, row)
    assert (answered.state, answered.answered_by, answered.outcome) == (ApprovalState.APPROVED, "ada", "seen")
    assert owed(cold)
    [merge] = run(cold).operation_ids
    assert not owed(cold)
    cold.drive(merge)

    assert cold.operation(merge).kind is OperationKind.MERGE
    done = approval_answers.find(cold.store, row.approval_id)
    assert (done.state, done.operation_id) == (ApprovalState.DONE, merge)
    newest = decisions(cold)[0]
    stored = {"decisions": newest.decisions, "refusals": newest.refusals}
    replayed = replay(newest.situation, newest.lanes, stored).replayed
    assert replayed is not None
    assert replayed["decisions"] == newest.decisions


def test_what_was_rejected_is_held_and_proposed_again_after_that(cold: Bench) -> None:
    marked(cold, approval_merges=True, approval_hold_seconds=600)
    row = proposed(cold)
    say(cold, row, approve=False)

    assert run(cold).operation_ids == ()
    assert waiting(cold) == []
    [refusal] = decisions(cold)[0].refusals
    assert refusal["reason"] == RefusalReason.APPROVAL_REFUSED
    wind(cold, row, 601)
    raised(cold)
    assert proposed(cold).approval_id > row.approval_id


def test_a_topic_that_waits_is_acted_on_elsewhere_meanwhile(bench: Bench) -> None:
    bench.topic_with(3)
    marked(bench, approval_merges=True)
    report(bench, {0: COLD, 1: COLD, 2: HOT}, cold_for=HOUR)

    [split] = run(bench).operation_ids

    assert bench.operation(split).parent_ids == (2,)


def test_an_approved_act_is_held_against_the_limits_of_the_moment(cold: Bench) -> None:
    row = proposed(cold)
    say(cold, row)
    marked(cold, approval_merges=True, min_segments=2)

    assert run(cold).operation_ids == ()
    assert [one["reason"] for one in decisions(cold)[0].refusals] == [RefusalReason.AT_MIN_SEGMENTS]
    wind(cold, row, 3_601)
    assert approval_answers.settle(cold.store) == {row.approval_id: ApprovalState.EXPIRED}
    assert "did not choose the action again within an hour" in (
        approval_answers.find(cold.store, row.approval_id).outcome or ""
    )


def test_a_large_split_waits_and_an_approval_of_it_is_used_up_by_it(bench: Bench) -> None:
    bench.topic_with(1)
    marked(bench, approval_min_segments=2, split_cooldown_seconds=0)
    report(bench, {0: HOT})
    say(bench, proposed(bench))

    [split] = run(bench, LOAD).operation_ids
    bench.drive(split)

    assert [segment.segment_id for segment in bench.layout.active] == [1, 2]
    report(bench, {1: HOT, 2: COLD})
    assert proposed(bench).segment_ids == (1,)


def test_two_who_answer_at_once_are_one_answer_and_a_conflict_that_names_the_first(cold: Bench) -> None:
    """Each of many pairs meets on one row; both see it pending, and one of them is first."""
    row = proposed(cold)
    together = Barrier(2)

    def answer(name: str, approve: bool) -> str:
        together.wait(10)
        try:
            return say(cold, row, approve=approve, actor=name).state.value
        except Conflict as error:
            return error.message

    with ThreadPoolExecutor(2) as both:
        said = [
            future.result(30)
            for future in [both.submit(answer, "ada", True), both.submit(answer, "eve", False)]
        ]

    final = approval_answers.find(cold.store, row.approval_id)
    first, verb = ("ada", "approved") if final.state is ApprovalState.APPROVED else ("eve", "rejected")
    assert final.answered_by == first
    assert min(said, key=len) == final.state.value
    assert f"was {verb} by {first} at " in max(said, key=len)


def test_one_who_answers_waits_for_one_who_is_answering(cold: Bench) -> None:
    """The second has read the row as pending, and its answer finds that it no longer is."""
    row = proposed(cold)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with ThreadPoolExecutor(1) as other:
        with cold.store.transaction() as tx:
            assert approval_rows.move(
                tx, row, ApprovalState.REJECTED, answered_by="eve", outcome="not now", in_time=True
            )
            second = other.submit(say, cold, row)
            cold.wait_until(lambda: cold.scalar(blocked))
        with pytest.raises(Conflict, match=r"was rejected by eve at .* \(not now\) and is rejected"):
            second.result(30)


def test_an_answer_about_another_subject_is_no_input_of_a_decision(cold: Bench) -> None:
    proposed(cold)
    about = NewApproval(Subject.PROMOTION, 1, cold.topic_id, "promote candidate 1", "cheaper", "tests", 60)
    cold.store.in_transaction(approval_rows.propose, [about])
    raised(cold)
    assert run(cold).still_dirty == ()

    answer_subject(cold.store, Subject.PROMOTION, 1, approve=False)

    assert not owed(cold)


def last_states(bench: Bench) -> list[ApprovalState]:
    """States of the approvals that are inputs of the topic's next decision."""
    with bench.store.transaction() as tx:
        return [one.state for one in approval_rows.last_words(tx, [bench.topic_id]).get(bench.topic_id, ())]


def test_an_approval_about_a_layout_that_moved_on_is_no_input_of_a_decision(cold: Bench) -> None:
    proposed(cold)
    assert last_states(cold) == [ApprovalState.PENDING]

    cold.drive(cold.intend(segment_admin.splitting(0)).operation.operation_id)

    assert last_states(cold) == []


def test_an_approval_that_has_ended_is_no_input_of_a_decision(cold: Bench) -> None:
    row = proposed(cold)
    assert cold.store.in_transaction(approval_rows.move, row, ApprovalState.EXPIRED, outcome="withdrawn")

    assert last_states(cold) == []


def test_the_same_answer_again_is_the_first_one(cold: Bench) -> None:
    row = proposed(cold)
    first = say(cold, row)

    assert say(cold, row, actor="eve") == first
    [merge] = run(cold).operation_ids
    again = say(cold, row, actor="eve")
    assert (again.state, again.answered_by, again.operation_id) == (ApprovalState.DONE, "ada", merge)
    with pytest.raises(Conflict, match=r"was approved by ada at .* and is done; make the change by hand"):
        say(cold, row, approve=False)


def test_a_dry_run_answers_nothing(cold: Bench) -> None:
    row = proposed(cold)

    store = DryRunStore(cold.url)
    try:
        with capture_logs() as lines:
            [would_be] = approval_answers.answer(
                store, [row.approval_id], approve=True, actor="ada", reason="seen"
            )
    finally:
        store.dispose()

    assert lines == []
    assert (would_be.state, would_be.answered_by) == (ApprovalState.APPROVED, "ada")
    assert waiting(cold) == [row]


def test_what_does_not_exist_is_said(bench: Bench) -> None:
    bench.topic_with(1)
    with pytest.raises(NotFound, match="approval 99 does not exist"):
        approval_answers.answer(bench.store, [99], approve=True, actor="ada", reason="seen")


@pytest.mark.parametrize(
    ("default", "state"), [("approve", ApprovalState.APPROVED), ("reject", ApprovalState.REJECTED)]
)
def test_without_an_answer_the_default_holds(cold: Bench, default: str, state: ApprovalState) -> None:
    marked(cold, approval_merges=True, approval_wait_seconds=60, approval_default=default)
    row = proposed(cold)

    assert approval_answers.settle(cold.store) == {}
    wind(cold, row, 61)
    settled = approval_answers.settle(cold.store)

    assert (settled, waiting(cold)) == ({row.approval_id: state}, [])
    found = approval_answers.find(cold.store, row.approval_id)
    assert (found.answered_by, found.outcome) == ("default", "no answer was given in time")
    assert bool(run(cold).operation_ids) is (default == "approve")


def test_no_answer_counts_after_its_time_whoever_looks_at_the_clock_first(cold: Bench) -> None:
    row = proposed(cold)
    wind(cold, row, 86_401)

    assert not waiting(cold)[0].is_answerable
    with pytest.raises(Conflict, match=r"ended at .* UTC, and the default, reject, applies"):
        say(cold, row)
    assert not cold.store.in_transaction(
        approval_rows.move, row, ApprovalState.APPROVED, answered_by="ada", outcome="late", in_time=True
    )
    assert approval_answers.settle(cold.store) == {row.approval_id: ApprovalState.REJECTED}


def test_defaults_are_given_beside_a_worker_where_no_pass_runs(cold: Bench) -> None:
    row = proposed(cold)
    wind(cold, row, 86_401)
    clock = ApprovalClock(cold.store, interval_seconds=0.01)
    beside = threading.Thread(target=clock.run)
    beside.start()

    cold.wait_until(lambda: waiting(cold) == [], message="the default is given")

    clock.stop()
    beside.join()
    assert approval_answers.find(cold.store, row.approval_id).answered_by == "default"


def test_each_act_is_asked_about_in_one_run_which_gets_the_same_questions_when_it_is_tried_again(
    cold: Bench,
) -> None:
    row = proposed(cold)
    assert approval_answers.some_unasked(cold.store)

    for _ in range(2):
        [asked] = approval_answers.ask(cold.store, "cleave_approvals/one")
        assert (asked.approval_id, asked.asked_in) == (row.approval_id, "cleave_approvals/one")
    assert approval_answers.ask(cold.store, "cleave_approvals/two") == []
    assert not approval_answers.some_unasked(cold.store)
    assert not owed(cold), "a question is no input of a decision"
    say(cold, row)
    assert approval_answers.ask(cold.store, "cleave_approvals/one") == []


def test_what_cannot_be_answered_any_more_is_not_asked_about(cold: Bench) -> None:
    row = proposed(cold)
    cold.reshape(segment_admin.merging(0, 1))

    assert approval_answers.ask(cold.store, "cleave_approvals/one") == []
    assert approval_answers.find(cold.store, row.approval_id).asked_in is None


def test_a_fleet_says_first_who_has_to_approve(cold: Bench) -> None:
    def needs() -> tuple[int, str | None]:
        [(urgency, said)] = cold.rows("SELECT urgency, needs FROM inspect.fleet")
        return urgency, said

    assert needs()[0] == 0
    row = proposed(cold)
    urgency, said = needs()
    assert urgency == 3
    assert said == f"1 action(s) wait for an approval, the first until {row.expires_at:%Y-%m-%d %H:%M} UTC"
    say(cold, row)
    assert needs()[0] == 0


def test_who_answers_never_waits_for_a_pass_nor_a_pass_for_who_answers(cold: Bench) -> None:
    """A pass of all lanes, as a worker makes one, goes on while an answer is being given and not yet stored."""
    row = proposed(cold)
    raised(cold)
    with cold.store.transaction() as tx:
        tx.execute(
            text("SELECT FROM cleave.approval WHERE approval_id = :id FOR UPDATE"), {"id": row.approval_id}
        )
        with ThreadPoolExecutor(1) as others:
            others.submit(run, cold).result(timeout=30)
    assert [one.state for one in waiting(cold)] == [ApprovalState.PENDING]


def test_a_proposal_about_a_layout_that_moved_on_expires_and_takes_no_answer(cold: Bench) -> None:
    row = proposed(cold)
    cold.drive(cold.intend(segment_admin.splitting(0)).operation.operation_id)

    with pytest.raises(Conflict, match="since the layout changed"):
        say(cold, row)
    settled = approval_answers.settle(cold.store)

    assert settled == {row.approval_id: ApprovalState.EXPIRED}
    with pytest.raises(Conflict, match="has expired: the layout changed"):
        say(cold, row)


def test_an_approval_of_a_topic_that_is_being_deleted_expires_and_says_so(bench: Bench) -> None:
    bench.topic_with(1)
    about = NewApproval(Subject.PROMOTION, 1, bench.topic_id, "promote candidate 1", "cheaper", "tests", 60)
    bench.store.in_transaction(approval_rows.propose, [about])
    topic_admin.delete_topic(bench.store, bench.topic_name, bench.request())
    [row] = waiting(bench)

    with pytest.raises(Conflict, match="is no longer possible, since the topic is no longer live"):
        say(bench, row)
    assert approval_answers.settle(bench.store) == {row.approval_id: ApprovalState.EXPIRED}
    assert approval_answers.find(bench.store, row.approval_id).outcome == "the topic is no longer live"


def test_the_database_knows_the_transitions_of_the_domain(cold: Bench) -> None:
    """Of another subject than an operation, so that an approval ends without one."""
    allowed = {
        (before, after) for before in ApprovalState for after in ApprovalState if moves(cold, before, after)
    }

    assert allowed == {(before, after) for before, later in TRANSITIONS.items() for after in later}


def moves(bench: Bench, before: ApprovalState, after: ApprovalState) -> bool:
    """Whether the database lets an approval go from one state to the other."""
    is_answered = {before} - {ApprovalState.PENDING, ApprovalState.EXPIRED}
    bench.execute(
        f"""
        INSERT INTO cleave.approval (subject, subject_id, expires_at, action, reason, proposed_by, default_answer,
                                     {", ".join(COLUMNS)})
        VALUES ('promotion', nextval('cleave.decision_id_seq'), now(), 'a', 'r', 'p', 'reject',
                {", ".join(columns_of(before, bool(is_answered)))})
        """
    )
    is_answered |= {after} - {ApprovalState.PENDING, ApprovalState.EXPIRED}
    changes = zip(COLUMNS, columns_of(after, bool(is_answered)), strict=True)
    newest = "(SELECT max(approval_id) FROM cleave.approval)"
    try:
        bench.execute(
            f"UPDATE cleave.approval SET {', '.join(f'{name} = {value}' for name, value in changes)} WHERE approval_id = {newest}"
        )
    except Terminal as error:
        return "Rows of approval are history" not in error.message
    return True


PLAN = {"kind": "'merge'", "segment_ids": "'{0, 1}'", "parts": "1", "segments": "2", "epoch": "1"}
DONE = {
    "state": "'done'",
    "answered_at": "now()",
    "answered_by": "'a'",
    "outcome": "'x'",
    "ended_at": "now()",
}
COLUMNS = ("state", "answered_at", "answered_by", "outcome", "ended_at")


def columns_of(state: ApprovalState, is_answered: bool) -> tuple[str, ...]:
    """The columns of an approval in the state, as SQL."""
    ends = state in (ApprovalState.EXPIRED, ApprovalState.DONE)
    answer = ("'2026-01-01'", "'ada'") if is_answered else ("NULL", "NULL")
    outcome = "NULL" if state is ApprovalState.PENDING else "'x'"
    return (f"'{state}'", *answer, outcome, "'2026-01-01'" if ends else "NULL")


def test_a_transition_that_is_none_is_refused_before_the_database_is_asked(cold: Bench) -> None:
    rejected = say(cold, proposed(cold), approve=False)

    with (
        cold.store.transaction() as tx,
        pytest.raises(InvariantViolated, match="rejected does not become approved"),
    ):
        approval_rows.move(tx, rejected, ApprovalState.APPROVED, outcome="x")


@pytest.mark.parametrize(
    "change",
    [
        "SET state = 'done', operation_id = NULL, ended_at = now(), outcome = 'x'",
        "SET parts = 5",
        "SET segment_ids = '{0}'",
        "SET asked_in = 'cleave_approvals/two'",
        "SET state = 'approved', answered_at = now(), answered_by = 'a', outcome = 'b', asked_in = 'c'",
        "SET state = 'approved', answered_at = now(), answered_by = 'a', outcome = 'b', default_answer = 'approve'",
    ],
)
def test_the_database_lets_nobody_rewrite_what_was_proposed(cold: Bench, change: str) -> None:
    proposed(cold)
    approval_answers.ask(cold.store, "cleave_approvals/one")

    with pytest.raises(Terminal, match="Rows of approval are history"):
        cold.execute(f"UPDATE cleave.approval {change}")


def test_the_database_lets_nobody_answer_without_a_name_or_twice(cold: Bench) -> None:
    row = proposed(cold)
    with pytest.raises(InvalidInput, match="has the time of the answer and the person who answered"):
        cold.execute("UPDATE cleave.approval SET state = 'approved', outcome = 'x'")
    say(cold, row)
    for change in ("state = 'rejected'", "state = 'expired', ended_at = now(), answered_by = 'eve'"):
        with pytest.raises(CleaveError, match="Rows of approval are history"):
            cold.execute(f"UPDATE cleave.approval SET {change}")


def test_the_database_takes_an_act_that_waits_once(cold: Bench) -> None:
    proposed(cold)
    columns = "subject, subject_id, topic_id, expires_at, action, reason, proposed_by, default_answer, kind, segment_ids, parts, segments, epoch"

    with pytest.raises(Conflict, match="has one pending approval at a time"):
        cold.execute(f"INSERT INTO cleave.approval ({columns}) SELECT {columns} FROM cleave.approval")


@pytest.mark.parametrize(
    ("subject", "columns", "law"),
    [
        ("operation", {}, "has the plan of the operation and a topic"),
        ("operation", {**PLAN, "topic_id": "NULL"}, "has the plan of the operation and a topic"),
        ("operation", {**PLAN, "epoch": "NULL"}, "has the plan of the operation and a topic"),
        ("promotion", {"kind": "'merge'"}, "has the plan of the operation and a topic"),
        ("operation", {**PLAN, "segment_ids": "'{}'"}, "An operation seals at least one segment"),
        ("operation", {**PLAN, "parts": "0"}, "An operation seals at least one segment"),
        ("promotion", {"outcome": "'x'"}, "that is not pending has an outcome"),
        ("promotion", {"ended_at": "now()"}, "An expired or done approval has the time of its end"),
        ("operation", {**PLAN, **DONE}, "is done exactly when it has the id of the operation"),
    ],
)
def test_the_database_takes_only_approvals_that_are_whole(
    cold: Bench, subject: str, columns: dict[str, str], law: str
) -> None:
    columns = {
        "subject": f"'{subject}'",
        "topic_id": str(cold.topic_id),
        "subject_id": "1",
        "expires_at": "now()",
        "action": "'a'",
        "reason": "'r'",
        "proposed_by": "'p'",
        "default_answer": "'reject'",
        **columns,
    }
    with pytest.raises(InvalidInput, match=law):
        cold.execute(
            f"INSERT INTO cleave.approval ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"
        )


def test_what_ended_is_forgotten_and_what_waits_is_not(cold: Bench) -> None:
    proposed(cold)
    later = datetime.now(UTC) + HOUR
    assert cold.store.in_transaction(approval_rows.forget_before, later) == 0
    say(cold, waiting(cold)[0], approve=False)
    with cold.store.transaction() as tx:
        assert approval_rows.forget_before(tx, later - 2 * HOUR) == 0
        assert approval_rows.forget_before(tx, later) == 1


def test_a_lane_that_is_not_asked_proposes_nothing(cold: Bench) -> None:
    run(cold, {Lane.CONSUMER, Lane.LOAD})

    assert waiting(cold) == []
