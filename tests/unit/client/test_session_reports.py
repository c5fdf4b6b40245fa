"""Reports of a session belong to the incarnation of the consumer that made them."""

from __future__ import annotations

import pytest

from controller.client import session
from controller.client.session import OwnedBucket, Session
from controller.domain.errors import SessionExpired
from tests.support.scripted_leader import ScriptedLeader


def owned(segment_id: int) -> OwnedBucket:
    return OwnedBucket(segment_id, 0, 0xFFFF, 1, False, f"log-{segment_id}", 1, True)


def test_a_report_that_waits_is_sent_for_the_incarnation_that_owned_the_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_FIRST_RETRY_SECONDS", 0.0)
    leader = ScriptedLeader(lambda _call: None, "released")
    running = Session(leader, "topic://a/b/c", "s", "me", on_change=lambda: None)
    leader.feed()
    first = leader.call("register").incarnation
    running.report_released([owned(1)])
    under_way = leader.call("released")
    running.report_released([owned(2)])

    leader.held |= {"attach"}
    leader.feed().hang_up()
    leader.call("attach", 2).answer(SessionExpired("away for too long", 0.0))
    second = leader.call("register", 3).incarnation
    under_way.answer()
    report = leader.call("released", 2)
    report.answer()
    leader.held.clear()
    leader.call("attach", 3).answer()
    running.close()

    assert second != first
    assert report.incarnation == first
    assert [bucket["segment_id"] for bucket in report.document["buckets"]] == [2]
