"""Kinds and states are declared once, in Python; the CHECK constraints of PostgreSQL hold the same values."""

from __future__ import annotations

import re
from collections.abc import Iterable

from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import ProposalKind, ProposalState
from controller.domain.approval_states import ApprovalState, Subject
from controller.domain.operation import OperationKind, OperationState, Origin
from controller.domain.operation_steps import MIRROR_MOVES, MOVES
from controller.domain.policy import APPROVAL_DEFAULTS, SUBSCRIPTION_CONSUMERS, PolicyLevel
from controller.domain.segment import SegmentState
from controller.domain.subscription_consumers import SubscriptionConsumers
from controller.store.decisions.candidates import CandidateState
from controller.store.topics.subscriptions import SubscriptionKind, SubscriptionState
from controller.store.topics.topics import TopicState
from tests.support.store_driver import StoreDriver

DECLARED: dict[str, Iterable[str]] = {
    "topic_state_known": TopicState,
    "segment_state_known": SegmentState,
    "operation_kind_known": OperationKind,
    "operation_state_known": OperationState,
    "operation_origin_known": Origin,
    "policy_change_level_known": PolicyLevel,
    "subscription_kind_known": SubscriptionKind,
    "subscription_state_known": SubscriptionState,
    "policy_candidate_state_known": CandidateState,
    "approval_default_known": APPROVAL_DEFAULTS,
    "approval_state_known": ApprovalState,
    "approval_subject_known": Subject,
    "namespace_bundles_mode_known": BalancingMode,
    "bundle_proposal_kind_known": ProposalKind,
    "bundle_proposal_state_known": ProposalState,
    "subscription_consumers_known": SubscriptionConsumers,
}
"""The constraint on a column, and the declaration of its values."""

WRITTEN_BY_SQL = {
    "approval_kind_known": "kinds of action that ask for approval",
    "backtest_run_state_known": "three statements of one file write it",
    "broker_load_report_known": "names of two pages of a broker",
    "departed_consumer_reason_known": "statements that delete consumers write it",
    "layout_change_kind_known": "kinds of operations, and what recovery and mirrors do",
    "gate_state_known": "the statements of one file write it",
    "topic_tally_known": "triggers write it",
}
"""Constraints on a list of values that no declaration holds."""


def values_of(driver: StoreDriver) -> dict[str, set[str]]:
    """Return the values that each constraint `..._known` on a list allows."""
    rows = driver.sql("""
        SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
         WHERE connamespace = 'cleave'::regnamespace AND contype = 'c' AND conname LIKE '%\\_known' AND conparentid = 0
    """)
    found = {name: set(re.findall(r"'([^']*)'::text", definition)) for name, definition in rows}
    return {name: values for name, values in found.items() if values}


def test_postgresql_allows_exactly_the_declared_values(driver: StoreDriver) -> None:
    allowed = values_of(driver)

    assert {name: set(map(str, values)) for name, values in DECLARED.items()} == {
        name: allowed[name] for name in DECLARED
    }
    assert allowed.keys() - DECLARED.keys() == WRITTEN_BY_SQL.keys()


def test_the_kinds_of_layout_changes_are_kinds_of_operations_and_two_more(driver: StoreDriver) -> None:
    assert values_of(driver)["layout_change_kind_known"] - {"mirrored", "recover"} <= set(
        map(str, OperationKind)
    )


def test_operations_that_postgresql_demands_to_be_finished_are_those_without_a_move(
    driver: StoreDriver,
) -> None:
    [(definition,)] = driver.sql(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'operation_finished_dated'"
    )
    final = set(re.findall(r"'([^']*)'::text", definition))

    assert final == {str(state) for state in OperationState if not state.is_live}
    for moves in (*MOVES.values(), *MIRROR_MOVES.values()):
        assert final.isdisjoint(map(str, moves))
        ends = (
            {str(leads_to) for _, leads_to in moves.values()}
            - set(map(str, moves))
            - {OperationState.ABORTING}
        )
        assert ends <= final


def test_the_policy_and_the_subscription_have_the_same_kinds_of_consumers() -> None:
    assert set(SUBSCRIPTION_CONSUMERS) == set(SubscriptionConsumers)
