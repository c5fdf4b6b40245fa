"""A registration that is refused changes nothing about the session that another incarnation holds."""

from __future__ import annotations

from controller.domain.errors import Conflict
from controller.services.consumer_sessions.requests import Register, ReportReasons, Request
from controller.services.consumer_sessions.settlement import ConnectionState, Settlement, settle
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.topics.bucket_owners import BucketReport, SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import Bench


def settled(bench: Bench, key: SubscriptionKey, request: Request) -> Settlement:
    with bench.store.transaction() as tx:
        return settle(tx, key, [request], ConsumerTiming(10.0), ConnectionState((), {}))


def reasons(bench: Bench) -> list[str]:
    return [reason for (reason,) in bench.rows("SELECT said FROM cleave.bucket_owner WHERE said IS NOT NULL")]


def test_a_registration_for_another_kind_leaves_the_reports_of_the_owner(bench: Bench) -> None:
    key = SubscriptionKey(bench.topic_with(segments=1), "billing")
    owner, *_ = settled(bench, key, Register(key=key, consumer="c", incarnation="1")).owners
    report = BucketReport(owner.bucket.segment_id, owner.bucket.bucket.start, owner.generation, "paused", 1.0)
    settled(bench, key, ReportReasons(key=key, consumer="c", incarnation="1", buckets=(report,)))
    assert reasons(bench) == ["paused"]

    wrong = Register(key=key, consumer="c", incarnation="2", reads=SubscriptionKind.QUEUE)
    assert [type(error) for error in settled(bench, key, wrong).refused.values()] == [Conflict]
    assert reasons(bench) == ["paused"]

    settled(bench, key, Register(key=key, consumer="c", incarnation="2"))
    assert reasons(bench) == [], "another incarnation has said nothing yet"
