"""A request that is refused changes nothing about the session that another incarnation or another subject holds."""

from __future__ import annotations

import pytest

from controller.domain.errors import AccessForbidden, Conflict
from controller.services.consumer_sessions.requests import (
    Drained,
    Register,
    Release,
    ReportReasons,
    Request,
)
from controller.services.consumer_sessions.settlement import ConnectionState, Settlement, settle
from controller.services.consumer_sessions.timing import ConsumerTiming
from controller.store.topics.bucket_owners import BucketReport, SubscriptionKey
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import Bench


def settled(bench: Bench, key: SubscriptionKey, request: Request) -> Settlement:
    return bench.store.in_transaction(settle, key, [request], ConsumerTiming(10.0), ConnectionState((), {}))


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


@pytest.mark.parametrize("act", [Release, Drained, ReportReasons])
def test_a_request_of_another_subject_is_refused_although_no_leader_remembers_the_session(
    bench: Bench, act: type[Request]
) -> None:
    key = SubscriptionKey(bench.topic_with(segments=1), "billing")
    registration = Register(key=key, consumer="c", incarnation="1", subject="shop")
    owner, *others = settled(bench, key, registration).owners
    segment_id, start, generation = owner.bucket.segment_id, owner.bucket.bucket.start, owner.generation
    details = {
        Release: {"buckets": ((segment_id, start, generation),)},
        Drained: {"segments": ((segment_id, generation),)},
        ReportReasons: {"buckets": (BucketReport(segment_id, start, generation, "paused", 1.0),)},
    }[act]
    request = act(key=key, consumer="c", incarnation="1", subject="other", **details)

    settlement = settled(bench, key, request)

    assert [type(error) for error in settlement.refused.values()] == [AccessForbidden]
    assert list(settlement.owners) == [owner, *others]
    assert reasons(bench) == []
