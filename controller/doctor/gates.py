"""Check of `cleave doctor` about gates: gates that hold standard consumers back without a reason, or do not hold."""

from __future__ import annotations

from controller.bootstrap import Application
from controller.domain.errors import Terminal
from controller.domain.formatting import duration
from controller.questions.question import read_view

OVERDUE_SECONDS = 10.0
"""The keeper opens a gate within a second of the drain; a slow broker needs longer."""


def gates(cleave: Application) -> str:
    """Return a summary of the shut gates. Raises Terminal for gates that are breached or overdue, or that keep no order."""
    with cleave.store.transaction() as tx:
        shut = read_view(
            tx, "inspect.gates", "gate <> 'open'", order="overdue_seconds DESC NULLS LAST, topic, segment_id"
        )
        unordered = read_view(
            tx,
            "inspect.observed_consumers",
            "read_by = 'stock' AND subscription_type NOT IN ('Failover', 'Exclusive')",
            order="topic, subscription",
        )
    if unordered:
        first = unordered[0]
        raise Terminal(
            f"{len(unordered)} subscription(s) for standard consumers are used as a type that no gate keeps in order, first "
            f"{first['subscription']} of {first['topic']} as {first['subscription_type']}; have its consumers subscribe as Failover or Exclusive"
        )
    if breached := [gate for gate in shut if gate["breached_at"] is not None]:
        first = breached[0]
        raise Terminal(
            f"{len(breached)} gate(s) are breached, first that of segment {first['segment_id']} of {first['topic']} for "
            f"{first['subscription']}: a consumer has acknowledged the barrier; set the crypto failure action of its consumers to FAIL"
        )
    late = [
        gate
        for gate in shut
        if gate["overdue_seconds"] is not None and gate["overdue_seconds"] > OVERDUE_SECONDS
    ]
    if late:
        first = late[0]
        why = f": {first['last_error']}" if first["last_error"] else ""
        raise Terminal(
            f"{len(late)} gate(s) could be open and are not, for {duration(float(first['overdue_seconds']))} that of segment "
            f"{first['segment_id']} of {first['topic']} for {first['subscription']}{why}; see docs/runbook/CleaveGateShut.md"
        )
    if not shut:
        return "none is shut"
    return f"{len(shut)} wait until older segments are read"
