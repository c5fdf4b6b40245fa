"""Check of gates: whether a gate stays shut although it could open, or does not keep the order."""

from __future__ import annotations

from controller.bootstrap import Application
from controller.domain.errors import Terminal
from controller.domain.formatting import duration
from controller.questions.question import read_view

OVERDUE_SECONDS = 10.0
"""Seconds after which a gate that could be open is reported. The keeper opens a gate within a second; a slow
broker needs longer.
"""


def gates(cleave: Application) -> str:
    """Return a sentence with the number of shut gates. Raises Terminal with the first subscription of a type
    that no gate keeps in order, else with the first gate that is breached, else with the gate that has been
    overdue longest, if that is more than `OVERDUE_SECONDS`.
    """
    with cleave.store.transaction() as tx:
        shut_gates = read_view(
            tx, "inspect.gates", "gate <> 'open'", order="overdue_seconds DESC NULLS LAST, topic, segment_id"
        )
        unordered_subscriptions = read_view(
            tx,
            "inspect.observed_consumers",
            "read_by = 'stock' AND subscription_type NOT IN ('Failover', 'Exclusive')",
            order="topic, subscription",
        )
    if unordered_subscriptions:
        first = unordered_subscriptions[0]
        raise Terminal(
            f"{len(unordered_subscriptions)} subscription(s) for standard consumers are used as a type that no gate keeps in order, first "
            f"{first['subscription']} of {first['topic']} as {first['subscription_type']}; have its consumers subscribe as Failover or Exclusive"
        )
    if breached := [gate for gate in shut_gates if gate["breached_at"] is not None]:
        first = breached[0]
        raise Terminal(
            f"{len(breached)} gate(s) are breached, first that of segment {first['segment_id']} of {first['topic']} for "
            f"{first['subscription']}: a consumer has acknowledged the barrier; set the crypto failure action of its consumers to FAIL"
        )
    overdue_gates = [
        gate
        for gate in shut_gates
        if gate["overdue_seconds"] is not None and gate["overdue_seconds"] > OVERDUE_SECONDS
    ]
    if overdue_gates:
        first = overdue_gates[0]
        reason = f": {first['last_error']}" if first["last_error"] else ""
        raise Terminal(
            f"{len(overdue_gates)} gate(s) could be open and are not, for {duration(float(first['overdue_seconds']))} that of segment "
            f"{first['segment_id']} of {first['topic']} for {first['subscription']}{reason}; see docs/runbook/CleaveGateShut.md"
        )
    if not shut_gates:
        return "none is shut"
    return f"{len(shut_gates)} wait until older segments are read"
