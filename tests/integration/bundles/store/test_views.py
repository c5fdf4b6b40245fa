"""What people see of bundles: load, brokers, proposals, why not, imbalance."""

from __future__ import annotations

from decimal import Decimal

import pytest

from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.store import cycles as bundle_cycles
from controller.bundles.store import namespaces as bundle_namespaces
from controller.bundles.store import proposals as bundle_proposals
from controller.bundles.store.namespaces import BalancingMode
from controller.bundles.store.proposals import NewProposal, ProposalKind
from controller.domain.approval_states import Subject
from tests.support import bundle_reports as rows
from tests.support.approvals import answer_subject
from tests.support.bundle_reports import CLUSTER, HALF, LAST, NAMESPACE, NOW
from tests.support.store_driver import StoreDriver

SPLIT = NewProposal(
    bundle=NamespaceBundle(NAMESPACE, HALF, LAST),
    kind=ProposalKind.SPLIT,
    reason="topics 1200 > 1000",
    cut_points=(0xC8000001,),
)
REFUSAL = {"rule": "even", "reason": "hit-count", "broker": "broker-2", "value": 1.0, "needed": 2.0}


@pytest.fixture
def seen(driver: StoreDriver) -> StoreDriver:
    """Two bundles, one of them reported, two brokers, one cycle with one proposal and one refusal."""
    changes = {
        "boundaries": [rows.boundaries(HALF)],
        "bundles": [rows.bundle(HALF, LAST, 30.0)],
        "namespaces": [rows.namespace_figures(40.0)],
        "brokers": [rows.broker(cpu=60.0), rows.broker("broker-2", 20.0, bandwidth_in_usage=40.0)],
        "clusters": [rows.cluster_figures(byte_rate_mean=40.0, byte_rate_stddev=10.0)],
    }
    driver.do(rows.merge, "run-1", changes)
    driver.do(rows.merge, "run-2", {"clusters": [rows.cluster_figures(5, byte_rate_stddev=99.0)]}, minutes=5)
    driver.do(
        bundle_cycles.record,
        CLUSTER,
        request_key="run-1",
        decided_at=NOW,
        decided_by="balancer",
        code_version="1",
        inputs="{}",
        outcome="{}",
        refusals=[REFUSAL],
        proposals=[SPLIT],
        next_state="{}",
        seen_state_version=0,
    )
    return driver


def test_bundles_now_shows_every_bundle_reported_or_not(seen: StoreDriver) -> None:
    found = seen.sql("""
        SELECT bundle, broker, mode, topic_count, share_of_namespace, can_split FROM inspect.bundles_now ORDER BY bundle
    """)

    assert found == [
        ("0x00000000_0x80000000", None, "dry-run", None, None, True),
        ("0x80000000_0xffffffff", "broker-1", "dry-run", 1, Decimal("0.750"), True),
    ]
    assert seen.sql("SELECT bundle_count, peak_msg_rate FROM inspect.bundles_namespaces") == [(2, 80.0)]


def test_brokers_show_their_busiest_signal_against_the_mean(seen: StoreDriver) -> None:
    found = seen.sql(
        "SELECT broker, usage, busiest_signal, above_mean FROM inspect.bundles_brokers ORDER BY 1"
    )

    assert found == [
        ("broker-1", Decimal("0.6000"), "cpu", Decimal("0.1000")),
        ("broker-2", Decimal("0.4000"), "bandwidth_in", Decimal("-0.1000")),
    ]


def test_proposals_name_bundle_cut_and_reason(seen: StoreDriver) -> None:
    found = seen.sql("SELECT bundle, kind, state, cut_points, reason, mode FROM inspect.bundles_proposals")

    assert found == [
        ("0x80000000_0xffffffff", "split", "proposed", ["0xc8000001"], "topics 1200 > 1000", "dry-run")
    ]


WHY = "SELECT rule, reason, broker, bundle FROM inspect.bundles_why_not ORDER BY rule"


def test_why_not_names_the_rule_that_refused_and_the_switch_that_is_off(seen: StoreDriver) -> None:
    assert seen.sql(WHY) == [
        ("even", "hit-count", "broker-2", None),
        ("split", "the namespace is in dry run; enable the namespace", None, "0x80000000_0xffffffff"),
    ]

    row = seen.do(
        bundle_namespaces.set_mode,
        CLUSTER,
        NAMESPACE,
        BalancingMode.APPROVAL,
        actor="ann",
        seen_row_version=1,
    )
    assert seen.sql(WHY)[1][1] == "waits for approval"

    [proposal] = seen.do(bundle_proposals.list_proposals, CLUSTER)
    answer_subject(
        seen.store, Subject.BUNDLE_PROPOSAL, proposal.proposal_id, approve=False, reason="not today"
    )
    assert row.mode is BalancingMode.APPROVAL
    assert seen.sql(WHY)[1][1] == "not today"


def test_imbalance_is_what_the_cycle_saw(seen: StoreDriver) -> None:
    found = seen.sql("""
        SELECT byte_rate_stddev, byte_rate_variation, proposals, verified, failed FROM inspect.bundles_imbalance
    """)

    assert found == [(10.0, Decimal("0.2500"), 1, 0, 0)]
    assert seen.sql("SELECT count(*) FROM inspect.bundles_load_runs") == [(2,)]
