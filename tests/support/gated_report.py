"""What a test reports when standard consumers wait in vain: each segment's gate, cursor and consumers, in the database and at the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import requests

from controller.domain.errors import CleaveError
from tests.support.bench import Bench

_SEGMENTS = """
    SELECT s.segment_id, s.state, s.backing_topic, g.state AS gate, g.last_error, d.segment_id IS NOT NULL AS is_drained
      FROM cleave.segment s
      LEFT JOIN cleave.gate g ON g.topic_id = s.topic_id AND g.segment_id = s.segment_id AND g.subscription = :name
      LEFT JOIN cleave.segment_drain d ON d.topic_id = s.topic_id AND d.segment_id = s.segment_id AND d.subscription = :name
     WHERE s.topic_id = :topic_id ORDER BY 1
"""
_OF_SUBSCRIPTION = ("msgBacklog", "unackedMessages", "msgOutCounter", "blockedSubscriptionOnUnackedMsgs")
_OF_CONSUMER = ("consumerName", "availablePermits", "unackedMessages", "msgOutCounter", "connectedSince")
_OF_CURSOR = ("markDeletePosition", "readPosition", "waitingReadOp", "subscriptionHavePendingRead", "state")
_TIMEOUT_SECONDS = 30.0


def gated_report(bench: Bench, subscription: str) -> str:
    """Return one line for each segment of the bench's topic on a broker."""
    rows = bench.rows(_SEGMENTS, name=subscription, topic_id=bench.topic_id)
    return "\n".join(_line(bench, subscription, *row) for row in rows)


def _line(
    bench: Bench,
    subscription: str,
    segment_id: int,
    state: str,
    log: str,
    gate: str | None,
    error: str | None,
    is_drained: bool,
) -> str:
    recorded = f"segment {segment_id} {state}, drained {is_drained}, gate {gate} ({error})"
    try:
        at_broker = bench.plane.gate_state(log, subscription)  # type: ignore[attr-defined]
        return f"{recorded}; at the broker {at_broker}: {', '.join(_at_broker(bench, log, subscription))}"
    except (CleaveError, requests.RequestException) as failure:
        return f"{recorded}; the broker does not tell: {failure}"


def _at_broker(bench: Bench, log: str, subscription: str) -> Iterator[str]:
    statistics = _ask(bench, log, "stats?getPreciseBacklog=true")["subscriptions"].get(subscription)
    internal = _ask(bench, log, "internalStats")
    cursor = internal["cursors"].get(subscription)
    yield f"{internal['state']} at {internal['lastConfirmedEntry']}"
    if statistics is None or cursor is None:
        yield "no subscription"
        return
    yield str({name: statistics.get(name) for name in _OF_SUBSCRIPTION})
    yield str({name: cursor.get(name) for name in _OF_CURSOR})
    for consumer in statistics["consumers"]:
        yield str({name: consumer.get(name) for name in _OF_CONSUMER})
    if not statistics["consumers"]:
        yield "no consumer"


def _ask(bench: Bench, log: str, what: str) -> Any:
    assert bench.pulsar is not None
    url = f"{bench.pulsar.admin_url}/admin/v2/persistent/{log.removeprefix('persistent://')}/{what}"
    answer = requests.get(url, timeout=_TIMEOUT_SECONDS)
    answer.raise_for_status()
    return answer.json()
