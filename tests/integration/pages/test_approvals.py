"""Acts that wait for a person, as pages show them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.domain.policy import PolicyOverride
from controller.pages import approvals
from controller.pages.approvals import page, waiting
from controller.services import approval_answers
from controller.store.topics import policies
from controller.tasks.dag_runs import DagRun
from tests.support.approvals import pending
from tests.support.bench import Bench
from tests.support.passes import COLD, report, run


def test_each_names_the_run_that_asks_and_which_of_its_questions_it_is(bench: Bench) -> None:
    bench.topic_with(4)
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(approval_merges=True))
    report(bench, dict.fromkeys(range(4), COLD), cold_for=timedelta(hours=1))
    run(bench)

    approval_answers.ask(bench.store, "cleave_approvals/one")

    with bench.store.transaction() as tx:
        shown = waiting(tx)
    assert [(one["asking"], one["question"]) for one in shown] == [
        (DagRun("cleave_approvals", "one"), 0),
        (DagRun("cleave_approvals", "one"), 1),
    ]


def test_the_page_has_what_waits_and_what_was_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "MAX_ROWS", 1)  # the newest one waits
    bench.topic_with(4)
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(approval_merges=True))
    report(bench, dict.fromkeys(range(4), COLD), cold_for=timedelta(hours=1))
    run(bench)
    second, first = pending(bench.store)
    approval_answers.answer(bench.store, [first.approval_id], approve=False, actor="ann", reason="sale")

    with bench.store.transaction() as tx:
        shown = page(tx)

    assert [one["approval_id"] for one in shown["approvals"]] == [second.approval_id]
    assert [(one["approval_id"], one["answered_by"]) for one in shown["ended"]] == [
        (first.approval_id, "ann")
    ]
