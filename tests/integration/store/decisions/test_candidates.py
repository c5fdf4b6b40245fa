"""Candidates in the database: they leave shadow once, on evidence, and are history after that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.domain.approval_states import Subject
from controller.domain.errors import CleaveError, InvalidInput, InvariantViolated, NotFound
from controller.domain.policy import PolicyOverride
from controller.services import topic_admin
from controller.store import backtests
from controller.store.approvals import NewApproval
from controller.store.backtests import BacktestRequest, BacktestResult
from controller.store.decisions import candidates
from controller.store.decisions.candidates import CandidateRow, CandidateState
from tests.support.bench import TOPIC, Bench

ASKED = BacktestRequest("key", "ada", "pip483-6", {"policies": [], "loads": [], "prices": {}})


@pytest.fixture
def bench(database: str) -> Iterator[Bench]:
    bench = Bench(database)
    bench.create(1)
    yield bench
    bench.close()


def propose(bench: Bench) -> CandidateRow:
    with bench.store.transaction() as tx:
        return candidates.propose(
            tx, bench.topic_id, PolicyOverride(max_segments=9), proposed_by="ada", reason="to see"
        )


def evidence(bench: Bench, live: float, candidate: float, topic_id: int | None = None) -> int:
    """A backtest of the topic in which the two cost so much."""
    topic_id = bench.topic_id if topic_id is None else topic_id
    with bench.store.transaction() as tx:
        run_id = backtests.begin(tx, ASKED).run_id
        results = [
            BacktestResult(TOPIC, name, 0, topic_id, cost, 1.0, {})
            for name, cost in (("in-force", live), ("candidate", candidate))
        ]
        backtests.finish(tx, run_id, ASKED, "here", results)
    return run_id


def end(bench: Bench, candidate: CandidateRow, state: CandidateState, run_id: int | None) -> CandidateRow:
    with bench.store.transaction() as tx:
        return candidates.end(
            tx, candidate.candidate_id, state, ended_by="eve", outcome="seen", run_id=run_id
        )


@pytest.mark.parametrize(("live", "candidate"), [(10.0, 10.0), (10.0, 11.0)])
def test_only_a_backtest_in_which_it_cost_less_lets_it_be_promoted(
    bench: Bench, live: float, candidate: float
) -> None:
    made = propose(bench)

    with pytest.raises(InvalidInput, match="promoted only on a backtest of its topic in which it cost less"):
        end(bench, made, CandidateState.PROMOTED, evidence(bench, live, candidate))


def test_no_backtest_and_one_of_another_topic_are_no_evidence(bench: Bench) -> None:
    made = propose(bench)
    for run_id in (None, evidence(bench, 10.0, 9.0, topic_id=bench.topic_id + 1)):
        with pytest.raises(InvalidInput, match="promoted only on a backtest"):
            end(bench, made, CandidateState.PROMOTED, run_id)
    with pytest.raises(CleaveError):
        end(bench, made, CandidateState.REFUSED, 4_711)


def test_with_evidence_it_is_promoted_and_is_history_from_then_on(bench: Bench) -> None:
    made = propose(bench)

    ended = end(bench, made, CandidateState.PROMOTED, evidence(bench, 10.0, 9.0))

    assert (ended.state, ended.ended_by, ended.outcome) == (CandidateState.PROMOTED, "eve", "seen")
    with pytest.raises(InvariantViolated, match="history"):
        end(bench, made, CandidateState.WITHDRAWN, None)
    [(regret, live_regret)] = bench.rows("SELECT regret, live_regret FROM inspect.policy_candidates")
    assert (regret, live_regret) == (9.0, 10.0)


def test_it_ends_with_its_topic_and_so_does_its_approval(bench: Bench) -> None:
    made = propose(bench)
    run_id, topic_id = evidence(bench, 10.0, 9.0), bench.topic_id
    approval = NewApproval(
        Subject.PROMOTION, made.candidate_id, topic_id, "promote candidate 1", "cheaper", "tests", 60
    )
    with bench.store.transaction() as tx:
        candidates.ask(tx, made, run_id, approval)

    bench.finish(topic_admin.delete_topic(bench.store, TOPIC, bench.request()))

    with bench.store.transaction() as tx:
        ended = candidates.newest(tx, topic_id)
    assert ended is not None
    assert ended.ended_at is not None
    assert (ended.state, ended.ended_by, ended.outcome) == (
        CandidateState.WITHDRAWN,
        "tester",
        "the topic was deleted",
    )
    assert bench.rows("SELECT state, outcome FROM cleave.approval") == [
        ("expired", "candidate 1 was withdrawn")
    ]


def test_what_was_proposed_is_not_changed(bench: Bench) -> None:
    propose(bench)

    with pytest.raises(InvariantViolated, match="history"):
        bench.execute("""UPDATE cleave.policy_candidate SET override = '{"max_segments": 64}'""")


def test_there_are_four_states(bench: Bench) -> None:
    propose(bench)
    ended = "ended_at = clock_timestamp(), ended_by = 'x', outcome = 'x'"

    with pytest.raises(InvalidInput, match="in shadow, promoted, refused or withdrawn"):
        bench.execute(f"UPDATE cleave.policy_candidate SET state = 'lost', {ended}")


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ("(:t, '{}', 'shadow')", InvalidInput, "sets at least one"),
        ("""(:t, '{"a": 1}', 'refused')""", InvalidInput, "has the time of its end"),
        ("""(:t + 1, '{"a": 1}', 'shadow')""", NotFound, "This policy candidate needs its topic to exist"),
    ],
)
def test_rows_that_make_no_sense_are_refused(
    bench: Bench, values: str, error: type[CleaveError], words: str
) -> None:
    columns = "topic_id, override, state, proposed_by, reason"
    with pytest.raises(error, match=words):
        bench.execute(
            f"INSERT INTO cleave.policy_candidate ({columns}) SELECT t, CAST(o AS jsonb), s, 'ada', 'x'"
            f" FROM (VALUES {values}) AS v (t, o, s)",
            t=bench.topic_id,
        )


def test_what_was_turned_down_is_found_again(bench: Bench) -> None:
    made = propose(bench)
    long_ago = made.proposed_at
    with bench.store.transaction() as tx:
        assert candidates.turned_down(tx, bench.topic_id, PolicyOverride(max_segments=9), long_ago) is None
    ended = end(bench, made, CandidateState.WITHDRAWN, None)

    with bench.store.transaction() as tx:
        assert candidates.turned_down(tx, bench.topic_id, PolicyOverride(max_segments=9), long_ago) == ended
        assert candidates.turned_down(tx, bench.topic_id, PolicyOverride(max_segments=8), long_ago) is None
        assert ended.ended_at is not None
        later = candidates.turned_down(tx, bench.topic_id, PolicyOverride(max_segments=9), ended.ended_at)
    assert later is None
