"""What Pulsar's admin API says and does beyond what its own client looks at, over plain HTTP on a real worker."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from controller.devstack.serving import serving_worker
from controller.services.segment_admin import splitting
from controller.store.postgres.inspection import rows
from tests.support.asking import administrator
from tests.support.bench import Bench

TOPIC = "/admin/v2/scalable/acme/shop/orders"
SEGMENTS = "/admin/v2/segments/acme/shop/orders"


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A topic of two segments with a subscription."""
    bench.topic_with(segments=2)
    return bench


@pytest.fixture
def http(bench: Bench) -> Iterator[httpx.Client]:
    """An administrator's client."""
    with serving_worker(bench.url) as running, administrator(running.address) as http:
        yield http


def test_statistics_have_the_load_of_each_segment_and_where_each_knob_comes_from(
    bench: Bench, http: httpx.Client
) -> None:
    bench.execute(
        "INSERT INTO cleave.segment_load (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,"
        " source, modified_at) VALUES (:topic_id, 0, 12000, 1, 2, 3, 'test', clock_timestamp())",
        topic_id=bench.topic_id,
    )
    assert http.post(f"{TOPIC}/autoScalePolicy", json={"maxSegments": 9}).status_code == 204

    stats = http.get(f"{TOPIC}/stats").json()
    load = stats["segments"]["0"]["load"]
    assert (load["msgRateIn"], load["byteRateOut"], load["isHot"]) == (12000.0, 3.0, True)
    assert stats["segments"]["1"]["load"] is None
    assert stats["effectivePolicy"]["maxSegments"] == {"value": 9, "level": "topic"}
    assert stats["effectivePolicy"]["targetUse"]["level"] == "default"
    assert stats["subscriptions"]["billing"]["type"] == "STREAM"


def test_one_segment_by_itself(bench: Bench, http: httpx.Client) -> None:
    bench.publish(1, count=3)

    found = http.get(f"{TOPIC}/segments/1/stats").json()

    assert found["subscriptions"] == {"billing": {"backlog": 3}}
    assert (found["state"], found["hashRange"]) == ("ACTIVE", {"start": 0x8000, "end": 0xFFFF})
    assert http.get(f"{TOPIC}/segments/7/stats").status_code == 404
    assert http.get(f"{SEGMENTS}/8000-ffff-1/subscription/billing/backlog").json() == 3


def test_a_policy_replaces_what_pulsar_knows_and_keeps_the_rest(bench: Bench, http: httpx.Client) -> None:
    bench.execute(
        """UPDATE cleave.topic SET policy = '{"max_segments": 5, "target_use": 0.7}', row_version = row_version + 1"""
    )
    assert http.get(f"{TOPIC}/autoScalePolicy").json() == {"maxSegments": 5}
    assert http.post(f"{TOPIC}/autoScalePolicy", json={"minSegments": 2}).status_code == 204

    assert http.get(f"{TOPIC}/autoScalePolicy").json() == {"minSegments": 2}
    assert bench.scalar("SELECT policy FROM cleave.topic") == {"target_use": 0.7, "min_segments": 2}
    assert http.post(f"{TOPIC}/autoScalePolicy", json={"maxSegmnts": 5}).status_code == 412
    assert http.delete(f"{TOPIC}/autoScalePolicy").status_code == 204
    assert http.get(f"{TOPIC}/autoScalePolicy").status_code == 204


def test_other_buckets(bench: Bench, http: httpx.Client) -> None:
    assert http.post(f"{TOPIC}/rebucket/0", params={"bucketCount": 8}).status_code == 204
    splits = http.get(TOPIC).json()["segments"]["2"]["entryBucketSplits"]
    assert len(splits) == 7
    refused = http.post(f"{TOPIC}/rebucket/2", params={"bucketCount": 8})
    assert (refused.status_code, refused.json()["kind"]) == (412, "InvalidLayoutChange")


def test_what_is_unread_is_not_deleted_by_any_force(bench: Bench, http: httpx.Client) -> None:
    bench.publish(0, count=1)
    bench.reshape(splitting(0))

    refused = http.delete(f"{SEGMENTS}/0000-7fff-0", params={"force": True})

    assert (refused.status_code, refused.json()["kind"]) == (409, "Conflict")
    assert "billing has 1 unread" in refused.json()["reason"]
    assert http.get(TOPIC).json()["segments"]["0"]["state"] == "SEALED"


def test_an_active_segment_is_not_deleted(http: httpx.Client) -> None:
    refused = http.delete(f"{SEGMENTS}/0000-7fff-0", params={"force": True})

    assert (refused.status_code, "is active" in refused.json()["reason"]) == (409, True)


def test_a_topic_with_consumers_is_deleted_by_force_only(bench: Bench, http: httpx.Client) -> None:
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:topic_id, 'billing', 'reader-1')",
        topic_id=bench.topic_id,
    )
    refused = http.delete(TOPIC)
    assert refused.status_code == 409
    assert "reader-1 of billing" in refused.json()["reason"]
    assert http.delete(TOPIC, params={"force": True}).status_code == 204
    assert http.get(TOPIC).status_code == 404


def test_a_data_plane_that_is_not_here_is_named(http: httpx.Client) -> None:
    for call in (
        http.put("/admin/v2/scalable/acme/shop/other", params={"dataPlane": "pulsar"}),
        http.post("/admin/v2/scalable/acme/shop/other/migrate"),
    ):
        assert (call.status_code, call.json()["kind"]) == (422, "Unsupported")


def test_each_change_is_written_down_with_its_result(bench: Bench, http: httpx.Client) -> None:
    http.post(f"{TOPIC}/split/0")
    http.post(f"{TOPIC}/split/0")
    http.get(TOPIC)
    with bench.store.transaction() as tx:
        audited = rows(
            tx, "SELECT subject, act, path, status, result, reason FROM inspect.audit ORDER BY audit_id"
        )
        [operation] = rows(tx, "SELECT origin, actor FROM inspect.operations WHERE kind = 'split'")

    assert [(row["subject"], row["act"], row["path"], row["result"]) for row in audited] == [
        ("ada", "split_segment", f"{TOPIC}/split/0", "done"),
        ("ada", "split_segment", f"{TOPIC}/split/0", "refused"),
    ]
    assert "segment 0" in audited[1]["reason"]
    assert operation == {"origin": "api", "actor": "ada"}
