"""Proposals of the balancer: forward only, with consent, one live act for each bundle, one holder at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import pytest
from sqlalchemy import Connection

from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import NewProposal, ProposalKind, ProposalRow, ProposalState
from controller.domain.approval_states import ApprovalState, Subject
from controller.domain.errors import Conflict, InvalidInput, InvariantViolated, LostRace, NotFound, Terminal
from controller.services import approval_answers
from controller.store.approvals import ApprovalRow
from tests.support.approvals import answer_subject, pending
from tests.support.bundle_reports import CLUSTER, HALF, LAST, NAMESPACE, NOW, add_namespace
from tests.support.store_driver import SOMEBODY_WAITS, StoreDriver
from tests.support.waiting import wait_until

LOWER, UPPER = NamespaceBundle(NAMESPACE, 0, HALF), NamespaceBundle(NAMESPACE, HALF, LAST)
UNLOAD = NewProposal(bundle=LOWER, kind=ProposalKind.UNLOAD, reason="overloaded", broker="b")
SPLIT = NewProposal(bundle=UPPER, kind=ProposalKind.SPLIT, reason="topics", cut_points=(HALF + 5,))


class Cycles:
    """A namespace, and cycles that propose."""

    def __init__(self, driver: StoreDriver) -> None:
        self.driver = driver
        self._count = 0
        add_namespace(driver, 0, HALF, LAST)

    def mode(self, mode: BalancingMode) -> None:
        row = self.driver.do(bundle_namespaces.get_namespace, CLUSTER, NAMESPACE)
        self.driver.do(
            bundle_namespaces.set_mode,
            CLUSTER,
            NAMESPACE,
            mode,
            actor="ann",
            seen_row_version=row.row_version,
        )

    def propose(self, *proposals: NewProposal, mode: BalancingMode | None = None) -> list[ProposalRow]:
        if mode is not None:
            self.mode(mode)
        cycle_id = self.driver.do(
            bundle_cycles.record,
            CLUSTER,
            request_key=f"run-{self._count}",
            decided_at=NOW,
            decided_by="balancer",
            code_version="1",
            inputs="{}",
            outcome="{}",
            proposals=proposals,
            next_state="{}",
            seen_state_version=self._count,
        )
        self._count += 1
        return self.driver.do(bundle_proposals.list_proposals, CLUSTER, cycle_id=cycle_id)

    def move(self, row: ProposalRow, state: ProposalState) -> ProposalRow:
        return self.driver.do(
            bundle_proposals.move,
            row.proposal_id,
            state,
            actor="ann",
            outcome="said",
            seen_row_version=row.row_version,
        )

    def read(self, row: ProposalRow) -> ProposalRow:
        return self.driver.do(bundle_proposals.get_proposal, row.proposal_id)

    def age(self, column: str, row: ProposalRow) -> None:
        """As if that had been an hour and a minute earlier."""
        self.driver.sql(
            f"UPDATE cleave.bundle_proposal SET {column} = {column} - interval '61 minutes'"
            " WHERE proposal_id = :proposal_id",
            proposal_id=row.proposal_id,
        )

    def end_wait(self) -> None:
        """As if the time of all approvals were over."""
        with self.without_laws_of_approvals():
            self.driver.sql("UPDATE cleave.approval SET expires_at = now() - interval '1 second'")

    @contextmanager
    def without_laws_of_approvals(self) -> Iterator[None]:
        """While an approval is made older."""
        self.driver.sql("ALTER TABLE cleave.approval DISABLE TRIGGER USER")
        yield
        self.driver.sql("ALTER TABLE cleave.approval ENABLE TRIGGER USER")

    @contextmanager
    def answer_that_waits(self, row: ProposalRow) -> Iterator[tuple[Connection, Future[ApprovalRow]]]:
        """An approval of the proposal that is being given, and the transaction whose lock of the proposal the answer waits for."""
        with ThreadPoolExecutor(1) as other, self.driver.store.transaction() as tx:
            bundle_proposals.get_proposal(tx, row.proposal_id, lock=True)
            answer = other.submit(answer_subject, self.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id)
            wait_until(lambda: self.driver.sql(SOMEBODY_WAITS))
            yield tx, answer

    def claim(
        self, state: ProposalState = ProposalState.APPROVED, *, claimant: str = "me", seconds: float = 60.0
    ) -> list[int]:
        rows = self.driver.do(
            bundle_proposals.claim, CLUSTER, state, claimant=claimant, seconds=seconds, limit=10
        )
        return [row.proposal_id for row in rows]


@pytest.fixture
def cycles(driver: StoreDriver) -> Cycles:
    return Cycles(driver)


def test_a_proposal_of_an_enabled_namespace_goes_all_the_way(cycles: Cycles) -> None:
    [row] = cycles.propose(SPLIT, mode=BalancingMode.APPROVAL)
    assert row.cut_points == (HALF + 5,)

    for state in (ProposalState.APPROVED, ProposalState.APPLIED, ProposalState.VERIFIED):
        row = cycles.move(row, state)

    assert (row.state, row.actor, row.outcome, row.row_version) == (
        ProposalState.VERIFIED,
        "ann",
        "said",
        4,
    )
    assert row == cycles.driver.do(bundle_proposals.get_proposal, row.proposal_id)


PATHS = {
    ProposalState.PROPOSED: [],
    ProposalState.APPROVED: [ProposalState.APPROVED],
    ProposalState.APPLIED: [ProposalState.APPROVED, ProposalState.APPLIED],
    ProposalState.VERIFIED: [ProposalState.APPROVED, ProposalState.APPLIED, ProposalState.VERIFIED],
    ProposalState.FAILED: [ProposalState.APPROVED, ProposalState.FAILED],
    ProposalState.REFUSED: [ProposalState.REFUSED],
}
ALLOWED = {
    (ProposalState.PROPOSED, ProposalState.APPROVED),
    (ProposalState.PROPOSED, ProposalState.REFUSED),
    (ProposalState.APPROVED, ProposalState.APPLIED),
    (ProposalState.APPROVED, ProposalState.FAILED),
    (ProposalState.APPROVED, ProposalState.REFUSED),
    (ProposalState.APPLIED, ProposalState.VERIFIED),
    (ProposalState.APPLIED, ProposalState.FAILED),
}


@pytest.mark.parametrize("start", PATHS)
def test_a_proposal_goes_forward_only(cycles: Cycles, start: ProposalState) -> None:
    cycles.mode(BalancingMode.AUTOMATIC)
    for end in [end for end in ProposalState if end is not start]:
        [row] = cycles.propose(UNLOAD)
        for state in PATHS[start]:
            row = cycles.move(row, state)
        if (start, end) in ALLOWED:
            row = cycles.move(row, end)
            assert row.state is end
        else:
            with pytest.raises(InvalidInput, match=f"is {start} and cannot become {end}"):
                cycles.move(row, end)
        cycles.driver.sql("DELETE FROM cleave.bundle_proposal")  # as the owner: the next begins alone


def test_in_dry_run_nothing_is_approved(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD)

    assert pending(cycles.driver.store) == []
    with pytest.raises(InvalidInput, match="is in dry run; enable the namespace"):
        cycles.move(row, ProposalState.APPROVED)
    assert (
        cycles.driver.do(
            bundle_proposals.approve_automatic, CLUSTER, row.cycle_id, ProposalKind.UNLOAD, limit=9, actor="b"
        )
        == 0
    )


def test_what_is_approved_waits_while_its_namespace_is_back_in_dry_run(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    cycles.move(row, ProposalState.APPROVED)

    cycles.mode(BalancingMode.DRY_RUN)
    assert cycles.claim() == []
    cycles.mode(BalancingMode.APPROVAL)
    assert cycles.claim() == [row.proposal_id]


def test_the_next_cycle_takes_the_place_of_what_nobody_approved(cycles: Cycles) -> None:
    left, taken = cycles.propose(UNLOAD, SPLIT, mode=BalancingMode.APPROVAL)
    cycles.move(taken, ProposalState.APPROVED)

    [new] = cycles.propose(UNLOAD)

    old = cycles.driver.do(bundle_proposals.get_proposal, left.proposal_id)
    assert (old.state, old.outcome) == (
        ProposalState.REFUSED,
        f"cycle {new.cycle_id} decided again before the proposal was approved",
    )
    kept = cycles.driver.do(bundle_proposals.get_proposal, taken.proposal_id)
    assert kept.state is ProposalState.APPROVED


def test_a_bundle_has_one_live_act(cycles: Cycles) -> None:
    [first] = cycles.propose(UNLOAD, mode=BalancingMode.AUTOMATIC)
    cycles.move(first, ProposalState.APPROVED)
    [second] = cycles.propose(UNLOAD)

    with pytest.raises(Conflict, match="one approved proposal at a time"):
        cycles.move(second, ProposalState.APPROVED)
    assert (
        cycles.driver.do(
            bundle_proposals.approve_automatic,
            CLUSTER,
            second.cycle_id,
            ProposalKind.UNLOAD,
            limit=9,
            actor="b",
        )
        == 0
    )


def test_automatic_approval_ends_a_question_of_before(cycles: Cycles) -> None:
    cycles.mode(BalancingMode.APPROVAL)
    [row] = cycles.propose(UNLOAD)
    cycles.driver.do(bundle_proposals.ask, CLUSTER)
    assert len(pending(cycles.driver.store)) == 1
    # The mode changes while the question is written.
    cycles.driver.sql("UPDATE cleave.namespace_bundles SET mode = 'automatic', row_version = row_version + 1")

    approved = cycles.driver.do(
        bundle_proposals.approve_automatic, CLUSTER, row.cycle_id, ProposalKind.UNLOAD, limit=1, actor="b"
    )

    assert approved == 1
    assert pending(cycles.driver.store) == []


def test_automatic_approval_keeps_to_its_kind_and_number(cycles: Cycles) -> None:
    cycles.mode(BalancingMode.AUTOMATIC)
    other = NewProposal(bundle=UPPER, kind=ProposalKind.UNLOAD, reason="r")
    first, second = cycles.propose(UNLOAD, other)

    approved = cycles.driver.do(
        bundle_proposals.approve_automatic, CLUSTER, first.cycle_id, ProposalKind.UNLOAD, limit=1, actor="b"
    )

    assert approved == 1
    assert cycles.claim() == [first.proposal_id]
    assert cycles.driver.do(bundle_proposals.get_proposal, second.proposal_id).state is ProposalState.PROPOSED


def test_each_kind_and_each_cycle_has_a_limit_of_its_own(cycles: Cycles) -> None:
    def approve(row: ProposalRow) -> int:
        approved: int = cycles.driver.do(
            bundle_proposals.approve_automatic, CLUSTER, row.cycle_id, row.kind, limit=1, actor="b"
        )
        return approved

    def begun(row: ProposalRow) -> int:
        count: int = cycles.driver.do(bundle_proposals.count_begun, CLUSTER, row.cycle_id, row.kind)
        return count

    unload, split = cycles.propose(UNLOAD, SPLIT, mode=BalancingMode.AUTOMATIC)
    assert (approve(split), approve(unload)) == (1, 1)
    cycles.claim()
    cycles.move(cycles.read(unload), ProposalState.FAILED)
    [again] = cycles.propose(UNLOAD)

    assert (begun(unload), begun(split), begun(again)) == (1, 1, 0)
    assert approve(again) == 1


def test_of_two_automatic_approvals_at_once_the_second_finds_nothing_to_approve(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.AUTOMATIC)
    approval = (CLUSTER, row.cycle_id, ProposalKind.UNLOAD)

    with ThreadPoolExecutor(1) as other:
        with cycles.driver.store.transaction() as tx:
            assert bundle_proposals.approve_automatic(tx, *approval, limit=9, actor="first") == 1
            second = other.submit(
                cycles.driver.do, bundle_proposals.approve_automatic, *approval, limit=9, actor="second"
            )
            wait_until(lambda: cycles.driver.sql(SOMEBODY_WAITS))
        assert second.result(60) == 0

    assert (cycles.read(row).actor, cycles.read(row).row_version) == ("first", 2)


def test_a_cycle_of_another_cluster_is_not_approved_automatically(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.AUTOMATIC)

    approved = cycles.driver.do(
        bundle_proposals.approve_automatic,
        "another",
        row.cycle_id,
        ProposalKind.UNLOAD,
        limit=9,
        actor="b",
    )

    assert approved == 0
    assert cycles.read(row).state is ProposalState.PROPOSED


def test_what_is_stale_is_not_approved_automatically(cycles: Cycles) -> None:
    old, young = cycles.propose(
        UNLOAD, NewProposal(bundle=UPPER, kind=ProposalKind.UNLOAD, reason="r"), mode=BalancingMode.AUTOMATIC
    )
    cycles.age("proposed_at", old)

    approved = cycles.driver.do(
        bundle_proposals.approve_automatic, CLUSTER, old.cycle_id, ProposalKind.UNLOAD, limit=9, actor="b"
    )

    assert approved == 1
    assert cycles.read(old).state is ProposalState.PROPOSED
    assert cycles.read(young).state is ProposalState.APPROVED


def test_what_is_stale_is_neither_claimed_nor_under_way(cycles: Cycles) -> None:
    waiting, approved = cycles.propose(UNLOAD, SPLIT, mode=BalancingMode.APPROVAL)
    cycles.move(approved, ProposalState.APPROVED)
    cycles.age("proposed_at", waiting)
    cycles.age("approved_at", approved)

    assert [cycles.read(row).is_stale for row in (waiting, approved)] == [True, True]
    assert cycles.driver.do(bundle_proposals.under_way, CLUSTER) == []
    assert cycles.claim() == []


def test_what_is_being_carried_out_does_not_expire(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    answer_subject(cycles.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id)
    assert cycles.claim() == [row.proposal_id]
    cycles.age("approved_at", row)

    assert cycles.driver.do(bundle_proposals.expire_approved, CLUSTER) == 0
    assert [one.proposal_id for one in cycles.driver.do(bundle_proposals.under_way, CLUSTER)] == [
        row.proposal_id
    ]
    cycles.driver.sql("UPDATE cleave.bundle_proposal SET claimed_until = now() - interval '1 second'")
    assert cycles.driver.do(bundle_proposals.expire_approved, CLUSTER) == 1
    assert cycles.read(row).outcome == (
        "not done within 60 minutes of its approval: the load has changed since; attempts: 1; "
        "the last: the result is not known"
    )


def test_a_bundle_whose_approved_act_is_stale_can_have_another(cycles: Cycles) -> None:
    [old] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    cycles.move(old, ProposalState.APPROVED)
    cycles.age("approved_at", old)

    [new] = cycles.propose(UNLOAD)

    assert cycles.read(old).state is ProposalState.REFUSED
    assert cycles.move(new, ProposalState.APPROVED).state is ProposalState.APPROVED


def test_a_claim_is_one_holders_until_it_ends(cycles: Cycles) -> None:
    cycles.mode(BalancingMode.APPROVAL)
    rows = [cycles.move(row, ProposalState.APPROVED) for row in cycles.propose(UNLOAD, SPLIT)]
    ids = [row.proposal_id for row in rows]

    assert cycles.claim(claimant="me") == ids
    assert cycles.claim(claimant="you") == []
    cycles.driver.sql("UPDATE cleave.bundle_proposal SET claimed_until = now() - interval '1 second'")
    assert cycles.claim(claimant="you") == ids
    with pytest.raises(LostRace, match="read the proposal again"):
        cycles.move(rows[0], ProposalState.APPLIED)


def test_what_is_let_go_comes_back_after_its_delay(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    cycles.move(row, ProposalState.APPROVED)
    [held] = cycles.driver.do(
        bundle_proposals.claim, CLUSTER, ProposalState.APPROVED, claimant="me", seconds=60, limit=1
    )

    cycles.driver.do(bundle_proposals.release, held, claimant="me", delay_seconds=30, why="broker is away")
    assert cycles.claim() == []
    now = cycles.driver.do(bundle_proposals.get_proposal, row.proposal_id)
    cycles.driver.do(bundle_proposals.release, now, claimant="me", delay_seconds=-1, why="broker is away")
    assert cycles.claim() == [row.proposal_id]

    with pytest.raises(LostRace, match="another process has claimed proposal"):
        cycles.driver.do(bundle_proposals.release, held, claimant="me", delay_seconds=0, why="late")


def test_a_proposal_stays_what_it_was(cycles: Cycles) -> None:
    cycles.propose(UNLOAD)

    with pytest.raises(InvariantViolated, match="never changes"):
        cycles.driver.sql("UPDATE cleave.bundle_proposal SET destination = 'elsewhere'")


@pytest.mark.parametrize(
    "bad",
    [
        NewProposal(bundle=LOWER, kind=ProposalKind.UNLOAD, reason="r", cut_points=(5,)),
        NewProposal(bundle=LOWER, kind=ProposalKind.SPLIT, reason="r"),
        NewProposal(bundle=LOWER, kind=ProposalKind.SPLIT, reason="r", cut_points=(HALF,)),
        NewProposal(bundle=UPPER, kind=ProposalKind.SPLIT, reason="r", cut_points=(HALF, HALF + 1)),
    ],
)
def test_cut_points_lie_strictly_inside(cycles: Cycles, bad: NewProposal) -> None:
    with pytest.raises(InvalidInput, match="strictly inside"):
        cycles.propose(bad)


def test_one_that_is_unknown_is_not_found(cycles: Cycles) -> None:
    with pytest.raises(NotFound, match="no proposal 404"):
        cycles.driver.do(bundle_proposals.get_proposal, 404, lock=True)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE cleave.bundle_decision SET outcome = '{}'",
        "DELETE FROM cleave.bundle_decision",
        "DELETE FROM cleave.bundle_proposal",
        "UPDATE cleave.bundle_load SET topic_count = 0",
        "INSERT INTO cleave.bundle_load_run VALUES ('r', now(), 'e', 0, 0, 0)",
    ],
)
def test_the_controller_rewrites_neither_history_nor_load(cycles: Cycles, statement: str) -> None:
    def as_controller() -> None:
        with cycles.driver.store.transaction() as tx:
            tx.exec_driver_sql("SET LOCAL ROLE cleave_controller")
            tx.exec_driver_sql(statement)

    with pytest.raises(Terminal, match="may not do this"):
        as_controller()


def test_a_proposal_waits_for_an_answer_where_its_namespace_needs_one(cycles: Cycles) -> None:
    """Also a proposal that was made before the mode was set, and none once the mode is another."""
    rows = cycles.propose(UNLOAD, SPLIT)
    assert pending(cycles.driver.store) == []
    cycles.driver.sql("UPDATE cleave.bundle_proposal SET proposed_at = proposed_at - interval '30 minutes'")

    cycles.mode(BalancingMode.APPROVAL)
    second, first = pending(cycles.driver.store)

    assert (first.subject, first.subject_id, first.level) == (
        Subject.BUNDLE_PROPOSAL,
        rows[0].proposal_id,
        "cluster",
    )
    assert (first.action, second.action) == (
        f"unload {LOWER} from b",
        f"split {UPPER} at {HALF + 5:#010x}",
    )
    assert (first.reason, first.proposed_by, first.default_answer) == ("overloaded", "balancer", "reject")
    assert (first.expires_at - cycles.read(rows[0]).proposed_at).total_seconds() == pytest.approx(
        3600, abs=10
    )
    cycles.mode(BalancingMode.AUTOMATIC)
    assert pending(cycles.driver.store) == []
    ended = approval_answers.find(cycles.driver.store, first.approval_id)
    assert (ended.state, ended.outcome) == (
        ApprovalState.EXPIRED,
        f"the mode of namespace {NAMESPACE} is automatic",
    )
    for _ in range(2):
        cycles.mode(BalancingMode.APPROVAL)
        assert len(pending(cycles.driver.store)) == 2


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (ProposalState.APPLIED, ApprovalState.DONE),
        (ProposalState.FAILED, ApprovalState.EXPIRED),
        (ProposalState.REFUSED, ApprovalState.EXPIRED),
    ],
)
def test_an_approval_ends_with_its_proposal(cycles: Cycles, end: ProposalState, state: ApprovalState) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    approved = answer_subject(cycles.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id, actor="bob")
    assert (cycles.read(row).state, cycles.read(row).actor) == (ProposalState.APPROVED, "bob")

    cycles.move(cycles.read(row), end)

    ended = approval_answers.find(cycles.driver.store, approved.approval_id)
    assert (ended.state, ended.answered_by, ended.outcome) == (state, "bob", "seen; said")


def test_an_approved_proposal_ends_its_approval_when_it_is_not_done_in_time(cycles: Cycles) -> None:
    """The cycle ends both; the hour of an approved operation is not that of a proposal."""
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    approved = answer_subject(cycles.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id)
    cycles.age("approved_at", row)
    with cycles.without_laws_of_approvals():
        cycles.driver.sql("UPDATE cleave.approval SET answered_at = answered_at - interval '61 minutes'")
    assert approval_answers.settle(cycles.driver.store) == {}

    cycles.propose()

    ended = approval_answers.find(cycles.driver.store, approved.approval_id)
    assert (cycles.read(row).state, ended.state) == (ProposalState.REFUSED, ApprovalState.EXPIRED)
    assert ended.outcome == "seen; not done in time: the load has changed since"


def test_a_rejected_proposal_is_refused_with_the_reason(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)

    rejected = answer_subject(
        cycles.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id, approve=False, reason="not today"
    )

    assert rejected.state is ApprovalState.REJECTED
    assert (cycles.read(row).state, cycles.read(row).outcome) == (ProposalState.REFUSED, "not today")


def test_a_proposal_that_nobody_answered_in_time_is_refused(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    [waiting] = pending(cycles.driver.store)
    cycles.end_wait()

    assert approval_answers.settle(cycles.driver.store) == {waiting.approval_id: ApprovalState.REJECTED}

    assert (cycles.read(row).state, cycles.read(row).outcome) == (
        ProposalState.REFUSED,
        "no answer was given in time",
    )


def test_a_default_that_its_proposal_refuses_is_taken_back_and_the_others_hold(cycles: Cycles) -> None:
    taken, left = cycles.propose(UNLOAD, SPLIT, mode=BalancingMode.APPROVAL)
    second, first = pending(cycles.driver.store)
    for state in (ProposalState.APPROVED, ProposalState.APPLIED):  # past `move`, which ends the approval
        cycles.driver.sql(
            "UPDATE cleave.bundle_proposal SET state = :state WHERE proposal_id = :id",
            state=state.value,
            id=taken.proposal_id,
        )
    cycles.end_wait()

    assert approval_answers.settle(cycles.driver.store) == {second.approval_id: ApprovalState.REJECTED}

    assert [row.approval_id for row in pending(cycles.driver.store)] == [first.approval_id]
    assert cycles.read(taken).state is ProposalState.APPLIED
    assert cycles.read(left).state is ProposalState.REFUSED


def test_an_approval_of_a_stale_proposal_is_taken_back(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    cycles.age("proposed_at", row)

    with pytest.raises(Conflict, match="has waited longer than 60 minutes"):
        answer_subject(cycles.driver.store, Subject.BUNDLE_PROPOSAL, row.proposal_id)

    assert cycles.read(row).state is ProposalState.PROPOSED
    assert len(pending(cycles.driver.store)) == 1


def test_no_approval_is_left_behind_however_many_proposals_its_cluster_has(cycles: Cycles) -> None:
    cycles.mode(BalancingMode.APPROVAL)
    cycles.propose(UNLOAD)
    others = [
        NewProposal(bundle=NamespaceBundle("acme/other", n, n + 1), kind=ProposalKind.UNLOAD, reason="r")
        for n in range(1001)
    ]
    assert len(cycles.propose(*others)) == 1001
    assert len(pending(cycles.driver.store)) == 1

    cycles.mode(BalancingMode.DRY_RUN)

    assert pending(cycles.driver.store) == []


def test_an_answer_takes_the_lock_of_its_proposal_first(cycles: Cycles) -> None:
    """As whoever changes the proposal does; an answer that locked its approval first would stop both."""
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)

    with cycles.answer_that_waits(row) as (tx, answer):
        bundle_proposals.stop_asking(tx, CLUSTER, NAMESPACE, "changed by hand")

    with pytest.raises(Conflict, match="has expired: changed by hand"):
        answer.result(30)


def test_an_answer_whose_time_ends_while_it_waits_does_not_count(cycles: Cycles) -> None:
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)

    with cycles.answer_that_waits(row) as (_, answer):
        cycles.end_wait()

    with pytest.raises(Conflict, match="can no longer be answered: the time for an answer ended at"):
        answer.result(30)
    assert cycles.read(row).state is ProposalState.PROPOSED


def test_a_proposal_of_another_cycle_takes_the_approval_along(cycles: Cycles) -> None:
    cycles.mode(BalancingMode.APPROVAL)
    cycles.propose(UNLOAD)
    [old] = pending(cycles.driver.store)

    [new] = cycles.propose(UNLOAD)

    assert [row.subject_id for row in pending(cycles.driver.store)] == [new.proposal_id]
    ended = approval_answers.find(cycles.driver.store, old.approval_id)
    assert (ended.state, ended.outcome) == (
        ApprovalState.EXPIRED,
        f"cycle {new.cycle_id} decided again",
    )


def test_two_answers_at_once_are_one_answer_and_a_conflict(cycles: Cycles) -> None:
    """Each locks the proposal first, so the second finds the approval answered."""
    [row] = cycles.propose(UNLOAD, mode=BalancingMode.APPROVAL)
    [waiting] = pending(cycles.driver.store)
    together = Barrier(2)

    def answer(approve: bool) -> str:
        together.wait(10)
        try:
            [answered] = approval_answers.answer(
                cycles.driver.store,
                [waiting.approval_id],
                approve=approve,
                actor="ada" if approve else "eve",
                reason="seen",
            )
        except Conflict as error:
            return error.message
        return answered.state.value

    with ThreadPoolExecutor(2) as both:
        said = sorted(both.map(answer, (True, False)), key=len)

    final = approval_answers.find(cycles.driver.store, waiting.approval_id)
    assert said[0] == final.state.value
    assert f"was {final.state} by {final.answered_by} at " in said[1]
    assert cycles.read(row).state.value == {"approved": "approved", "rejected": "refused"}[final.state]
