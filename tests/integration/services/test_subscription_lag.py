"""How far behind a subscription is: what nobody reads is counted too, and what cannot be counted says why."""

from __future__ import annotations

import pytest

from controller.domain.errors import DataPlaneUnavailable, SubscriptionNotFound, TopicNotFound
from controller.services.segment_admin import splitting
from controller.services.subscription_lag import lag
from tests.support.bench import TOPIC, Bench


def test_what_nobody_reads_is_counted_and_sealed_segments_too(bench: Bench) -> None:
    bench.topic_with(segments=1)
    bench.publish(0, count=5)
    bench.reshape(splitting(0))

    found = lag(bench.store, bench.planes, TOPIC, "billing")

    assert {(one.segment_id, one.state) for one in found} == {(0, "SEALED"), (1, "ACTIVE"), (2, "ACTIVE")}
    assert sum(one.messages or 0 for one in found if one.segment_id == 0) == 5
    assert {one.messages for one in found if one.segment_id != 0} == {0}
    assert {one.owners for one in found} == {()}


def test_what_is_drained_is_left_out(bench: Bench) -> None:
    bench.topic_with(segments=1)
    bench.reshape(splitting(0))
    bench.execute(
        "INSERT INTO cleave.segment_drain (topic_id, subscription, segment_id) VALUES (:t, 'billing', 0)",
        t=bench.topic_id,
    )

    assert {one.segment_id for one in lag(bench.store, bench.planes, TOPIC, "billing")} == {1, 2}


def test_a_log_that_cannot_be_counted_says_so_and_hides_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.topic_with(segments=2)
    bench.publish(1, count=3)
    away, count = bench.log_of(0), bench.plane.backlog_of_buckets

    def counted(log: str, subscription: str, starts: list[int]) -> object:
        if log == away:
            raise DataPlaneUnavailable("the disk is slow")
        return count(log, subscription, starts)

    monkeypatch.setattr(type(bench.plane), "backlog_of_buckets", lambda _self, *given: counted(*given))
    found = lag(bench.store, bench.planes, TOPIC, "billing")

    assert [(one.bucket, one.messages, one.error) for one in found if one.segment_id == 0] == [
        (None, None, "the disk is slow")
    ]
    assert sum(one.messages or 0 for one in found if one.segment_id == 1) == 3


def test_who_is_not_there_is_named(bench: Bench) -> None:
    with pytest.raises(TopicNotFound):
        lag(bench.store, bench.planes, TOPIC, "billing")
    bench.topic_with(segments=1)
    with pytest.raises(SubscriptionNotFound):
        lag(bench.store, bench.planes, TOPIC, "elsewhere")
