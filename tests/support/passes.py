"""Shorthands for passes of the autoscaler over a bench's topic."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from controller.domain.decision import Lane
from controller.domain.evaluator import ALL_LANES
from controller.domain.policy import PolicyOverride
from controller.services import autoscaler
from controller.services.autoscaler import PassResult
from controller.store.decisions import decision_log, evaluations
from controller.store.topics import policies
from tests.support.bench import Bench
from tests.support.reports import report_load

LOAD = frozenset({Lane.LOAD})
HOT, WARM, COLD = 25_000.0, 5_000.0, 1.0


def run(bench: Bench, lanes: Collection[Lane] = ALL_LANES, **options: Any) -> PassResult:
    """Run one pass."""
    return autoscaler.run_pass(
        bench.store, bench.planes, lanes, **{"decided_by": "tests", "limit": 100} | options
    )


def report(bench: Bench, rates: dict[int, float], **options: Any) -> None:
    """Store the load of `TOPIC`'s segments; `options` as of `report_load`."""
    with bench.store.transaction() as tx:
        report_load(tx, bench.topic_id, rates, **options)


def set_policy(bench: Bench, **parameters: Any) -> None:
    """Set the policy of `TOPIC`."""
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(**parameters), actor="ann")


def register(bench: Bench, name: str) -> None:
    """Insert a consumer of the topic's one subscription."""
    statement = "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:id, 'billing', :name)"
    bench.execute(statement, id=bench.topic_id, name=name)


def decisions(bench: Bench) -> list[decision_log.DecisionRow]:
    """Return the decision log of `TOPIC`, newest first."""
    with bench.store.transaction() as tx:
        return decision_log.list_decisions(tx, bench.topic_id)


def owed(bench: Bench) -> bool:
    """Return True if a pass has work."""
    with bench.store.transaction() as tx:
        return bool(evaluations.lock_due(tx, lanes=ALL_LANES, limit=1))
