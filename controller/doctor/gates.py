"""The part of `cleave doctor` about gates: what holds standard consumers back, and should not."""

from __future__ import annotations

from controller.bootstrap import Application
from controller.domain.errors import Terminal
from controller.domain.formatting import duration
from controller.questions.question import read_view

OVERDUE_SECONDS = 10.0
"""A gate is opened within a second of the drain; a broker that is slow takes longer."""


def gates(cleave: Application) -> str:
    """Report the gates. Raises Terminal for gates that do not hold or are not opened in time."""
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
    if breached := [one for one in shut if one["breached_at"] is not None]:
        first = breached[0]
        raise Terminal(
            f"{len(breached)} gate(s) are breached, first that of segment {first['segment_id']} of {first['topic']} for "
            f"{first['subscription']}: a consumer has acknowledged the barrier; set the crypto failure action of its consumers to FAIL"
        )
    late = [
        one for one in shut if one["overdue_seconds"] is not None and one["overdue_seconds"] > OVERDUE_SECONDS
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
