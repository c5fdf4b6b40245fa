"""What Pulsar's admin API says and does beyond what its own client looks at, over plain HTTP on a real worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from controller.devstack.serving import serving_worker
from controller.services.segment_admin import splitting
from controller.store.postgres.inspection import rows
from tests.support.asking import administrator
from tests.support.bench import Bench

SEGMENTS = 2

TOPIC = "/admin/v2/scalable/acme/shop/orders"
POLICY_OF_NAMESPACE = "/admin/v2/namespaces/acme/shop/scalableTopicAutoScalePolicy"
SEGMENT_LOGS = "/admin/v2/segments/acme/shop/orders"


@pytest.fixture
def http(bench: Bench) -> Iterator[httpx.Client]:
    """An administrator's client."""
    with serving_worker(bench.url) as running, administrator(running.address) as http:
        yield http


def test_statistics_have_the_load_of_each_segment_and_where_each_parameter_comes_from(
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
    assert http.get(f"{SEGMENT_LOGS}/8000-ffff-1/subscription/billing/backlog").json() == 3


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


LONGEST = 2**63 - 1
FLOOR = "splitVsRebucketMinMsgRateInThreshold"


@pytest.mark.parametrize(
    ("given", "answered"),
    [
        ({"splitBytesRateInThreshold": LONGEST}, None),
        ({"splitBytesRateInThreshold": 2**60}, None),
        ({"mergeBytesRateOutThreshold": 3}, None),
        ({"splitMsgRateInThreshold": "Infinity"}, None),
        ({"splitMsgRateOutThreshold": 123456.789}, None),
        ({"maxSegments": 2**31 - 1, "enabled": False, "mergeWindowSeconds": 7}, None),
        ({FLOOR: 12.5}, None),
        ({"splitVsRebucketMinMsgRateIn": 12.5}, {FLOOR: 12.5}),
        ({"splitVsRebucketMinMsgRateIn": 12.5, FLOOR: 12.5}, {FLOOR: 12.5}),
    ],
)
def test_an_override_is_answered_as_it_was_given(
    http: httpx.Client, given: dict[str, Any], answered: dict[str, Any] | None
) -> None:
    expected = answered or given
    for path in (f"{TOPIC}/autoScalePolicy", POLICY_OF_NAMESPACE):
        assert http.post(path, json=given).status_code == 204
        said = http.get(path)
        assert said.json() == expected, said.text
        assert {name: type(value) for name, value in said.json().items()} == {
            name: type(value) for name, value in expected.items()
        }
    in_metadata = http.get(TOPIC).json()["autoScalePolicy"]
    assert {name: value for name, value in in_metadata.items() if value is not None} == expected


@pytest.mark.parametrize(
    "given",
    [
        '{"splitBytesRateInThreshold": 9223372036854775806}',
        '{"splitBytesRateInThreshold": 9223372036854775808}',
        '{"splitBytesRateInThreshold": "Infinity"}',
        '{"splitBytesRateInThreshold": 50000000.5}',
        '{"splitMsgRateInThreshold": 9007199254740993}',
        '{"splitMsgRateInThreshold": 1' + "0" * 400 + "}",
        '{"splitMsgRateInThreshold": "-Infinity"}',
        '{"splitMsgRateInThreshold": "NaN"}',
        '{"splitMsgRateInThreshold": NaN}',
        '{"splitMsgRateInThreshold": "20000"}',
        '{"splitMsgRateInThreshold": true}',
        '{"splitBytesRateInThreshold": true}',
        '{"maxSegments": true}',
        '{"maxSegments": 2147483648}',
        '{"maxSegments": "16"}',
        '{"enabled": 1}',
        '{"splitVsRebucketMinMsgRateIn": 1, "splitVsRebucketMinMsgRateInThreshold": 2}',
    ],
)
def test_an_override_that_would_be_answered_otherwise_is_refused(http: httpx.Client, given: str) -> None:
    for path in (f"{TOPIC}/autoScalePolicy", POLICY_OF_NAMESPACE):
        answer = http.post(path, content=given, headers={"Content-Type": "application/json"})
        assert (answer.status_code, bool(answer.json()["reason"])) == (412, True), answer.text
        assert http.get(path).status_code == 204


def test_what_another_interface_stored_is_answered_as_pulsar_can_read_it(
    bench: Bench, http: httpx.Client
) -> None:
    stored = {"split_byte_rate_in": "Infinity", "split_byte_rate_out": 1e300, "max_segments": 2**40}
    assert (
        http.post("/api/v1/policies/topics/acme/shop/orders", json={"parameters": stored}).status_code == 200
    )

    assert http.get(f"{TOPIC}/autoScalePolicy").json() == {
        "splitBytesRateInThreshold": LONGEST,
        "splitBytesRateOutThreshold": LONGEST,
        "maxSegments": 2**31 - 1,
    }
    stored = {**stored, "split_byte_rate_out": "fast", "merge_msg_rate_in": 10**400}
    bench.execute(
        "UPDATE cleave.topic SET policy = CAST(:stored AS jsonb), row_version = row_version + 1",
        stored=json.dumps(stored),
    )
    assert http.get(f"{TOPIC}/autoScalePolicy").json() == {
        "splitBytesRateInThreshold": LONGEST,
        "maxSegments": 2**31 - 1,
    }


def test_other_buckets(bench: Bench, http: httpx.Client) -> None:
    assert http.post(f"{TOPIC}/rebucket/0", params={"bucketCount": 8}).status_code == 204
    splits = http.get(TOPIC).json()["segments"]["2"]["entryBucketSplits"]
    assert len(splits) == 7
    refused = http.post(f"{TOPIC}/rebucket/2", params={"bucketCount": 8})
    assert (refused.status_code, refused.json()["kind"]) == (412, "InvalidLayoutChange")


def test_what_is_unread_is_not_deleted_by_any_force(bench: Bench, http: httpx.Client) -> None:
    bench.publish(0, count=1)
    bench.reshape(splitting(0))

    refused = http.delete(f"{SEGMENT_LOGS}/0000-7fff-0", params={"force": True})

    assert (refused.status_code, refused.json()["kind"]) == (409, "Conflict")
    assert "billing has 1 unread" in refused.json()["reason"]
    assert http.get(TOPIC).json()["segments"]["0"]["state"] == "SEALED"


def test_an_active_segment_is_not_deleted(http: httpx.Client) -> None:
    refused = http.delete(f"{SEGMENT_LOGS}/0000-7fff-0", params={"force": True})

    assert (refused.status_code, "is active" in refused.json()["reason"]) == (409, True)


def test_a_topic_with_consumers_is_deleted_by_force_only(bench: Bench, http: httpx.Client) -> None:
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:topic_id, 'billing', 'reader-1')",
        topic_id=bench.topic_id,
    )
    refused = http.delete(TOPIC)
    assert refused.status_code == 409
    assert "(1 of billing, such as reader-1)" in refused.json()["reason"]
    assert http.delete(TOPIC, params={"force": True}).status_code == 204
    assert http.get(TOPIC).status_code == 404


def test_standard_consumers_without_a_name_are_consumers(bench: Bench, http: httpx.Client) -> None:
    bench.execute(
        "UPDATE cleave.subscription SET consumers = 'stock' WHERE topic_id = :topic_id",
        topic_id=bench.topic_id,
    )
    bench.execute(
        "INSERT INTO cleave.observed_subscription (topic_id, name, subscription_type, consumers, consumer_names)"
        " VALUES (:topic_id, 'billing', 'Exclusive', 1, '{}')",
        topic_id=bench.topic_id,
    )
    refused = http.delete(TOPIC)
    assert refused.status_code == 409
    assert "(1 of billing)" in refused.json()["reason"]


def test_a_data_plane_that_is_not_here_is_named(http: httpx.Client) -> None:
    for call in (
        http.put("/admin/v2/scalable/acme/shop/other", params={"dataPlane": "pulsar"}),
        http.post("/admin/v2/scalable/acme/shop/other/migrate"),
    ):
        assert (call.status_code, call.json()["kind"]) == (422, "Unsupported")


def test_the_policy_says_who_reads_a_new_stream_subscription(bench: Bench, http: httpx.Client) -> None:
    """Embedded logs have no gates, so no subscription for standard consumers is created there."""
    policy = {"parameters": {"subscription_consumers": "stock"}}
    assert http.post("/api/v1/policies/topics/acme/shop/orders", json=policy).status_code == 200

    refused = http.put(f"{TOPIC}/subscriptions/audit")

    assert (refused.status_code, refused.json()["kind"]) == (422, "Unsupported")
    assert "has no gates" in refused.json()["reason"]
    assert http.put(f"{TOPIC}/subscriptions/jobs", params={"type": "QUEUE"}).status_code == 204
    assert bench.rows("SELECT name, consumers FROM cleave.subscription ORDER BY name") == [
        ("billing", "cleave"),
        ("jobs", "cleave"),
    ]


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
