"""Pulsar 5's own Java admin client against a real worker: every method of its scalable topics, found by reflection, and what it is
told of a mistake.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from controller.devstack.postgres import PostgresServer
from controller.devstack.pulsar.jars import PULSAR_5
from controller.devstack.serving import ServingWorker, serving_worker, token_of
from controller.store.postgres.engine import Store
from controller.web.access import Role
from tests.support.brokers import SharedBroker, demand_jars

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]
NAMESPACE = "public/default"


class Client:
    """The Java client, in a process of its own."""

    def __init__(self, url: str, token: str, jars: Path, home: Path) -> None:
        command = [sys.executable, "-m", "tests.support.java_admin", url, token, str(jars), str(home)]
        self._log = (home / "java.log").open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def ask(self, call: str, *arguments: Any, of: str = "scalableTopics") -> dict[str, Any]:
        """One call, however it ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"of": of, "call": call, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def do(self, call: str, *arguments: Any, of: str = "scalableTopics") -> Any:
        """One call that succeeds."""
        answer = self.ask(call, *arguments, of=of)
        assert "result" in answer, (call, answer)
        return answer["result"]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


@pytest.fixture(scope="module")
def worker_database(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    name = f"cleave_admin_{secrets.token_hex(4)}"
    yield postgres_server.create_database(name, template=migrated_template)
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def worker(worker_database: str, pulsar_broker: SharedBroker) -> Iterator[ServingWorker]:
    with serving_worker(
        worker_database,
        pulsar_admin_url=pulsar_broker.admin_url,
        pulsar_service_url=pulsar_broker.service_url,
        call_timeout_seconds=30.0,
        operation_claim_seconds=60.0,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(worker: ServingWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("java")
    client = Client(worker.address, token_of(Role.ADMIN, subject="ada"), demand_jars(PULSAR_5), home)
    yield client
    client.close()


@pytest.fixture
def store(worker_database: str) -> Iterator[Store]:
    store = Store(worker_database)
    yield store
    store.dispose()


Do = Callable[..., Any]
WAYS = pytest.mark.parametrize("do", ["", "Async"], ids=["waiting", "asynchronous"], indirect=True)


@pytest.fixture
def do(client: Client, request: pytest.FixtureRequest) -> Do:
    """A call by its own signature, or of its twin that answers later."""

    def call(name: str, *arguments: Any) -> Any:
        return client.do(name.replace("(", f"{request.param}("), *arguments)

    return call


@pytest.fixture
def topic() -> str:
    """A name."""
    return f"topic://{NAMESPACE}/t-{secrets.token_hex(4)}"


@WAYS
def test_topics_are_created_listed_and_deleted(do: Do, topic: str) -> None:
    plain = f"{topic}-plain"
    do("createScalableTopic(String,int)", plain, 1)
    do("createScalableTopic(String,int,Map)", topic, 2, {"team": "billing", "tier": "one"})

    assert {topic, plain} <= set(do("listScalableTopics(String)", NAMESPACE))
    billing = do("listScalableTopicsByProperties(String,Map)", NAMESPACE, {"team": "billing"})
    assert (topic in billing, plain in billing) == (True, False)
    do("deleteScalableTopic(String,boolean)", topic, True)
    do("deleteScalableTopic(String)", plain)
    assert not {topic, plain} & set(do("listScalableTopics(String)", NAMESPACE))


@WAYS
def test_segments_are_split_and_merged_and_shown(do: Do, topic: str) -> None:
    do("createScalableTopic(String,int,Map)", topic, 2, {"team": "billing"})
    do("createSubscription(String,String,ScalableSubscriptionType)", topic, "billing", "STREAM")
    do("createSubscription(String,String,ScalableSubscriptionType)", topic, "audit", "QUEUE")
    do("splitSegment(String,long)", topic, 1)
    do("mergeSegments(String,long,long)", topic, 0, 2)

    found = do("getMetadata(String)", topic)
    assert (found["epoch"], found["nextSegmentId"], found["properties"]) == (2, 5, {"team": "billing"})
    ranges = {
        int(i): (one["hashRange"]["start"], one["hashRange"]["end"])
        for i, one in found["segments"].items()
        if one["state"] == "ACTIVE"
    }
    assert ranges == {3: (0xC000, 0xFFFF), 4: (0x0000, 0xBFFF)}
    assert found["segments"]["4"]["parentIds"] == [0, 2]
    stats = do("getStats(String)", topic)
    assert (stats["totalSegments"], stats["activeSegments"], stats["sealedSegments"]) == (5, 2, 3)
    assert stats["segments"]["3"]["name"] == f"{log_of(topic)}/c000-ffff-3"
    assert stats["subscriptions"] == {"billing": {"consumerCount": 0}, "audit": {"consumerCount": 0}}


@WAYS
def test_a_topics_policy(do: Do, topic: str) -> None:
    do("createScalableTopic(String,int)", topic, 1)
    assert do("getAutoScalePolicy(String)", topic) is None
    policy = {
        "maxSegments": 7,
        "splitBytesRateInThreshold": 2**63 - 1,
        "splitMsgRateInThreshold": 1234.5,
        "splitMsgRateOutThreshold": "Infinity",
    }
    do("setAutoScalePolicy(String,AutoScalePolicyOverride)", topic, policy)
    kept = do("getAutoScalePolicy(String)", topic)
    assert {name: value for name, value in kept.items() if value is not None} == policy
    assert do("getMetadata(String)", topic)["autoScalePolicy"] == kept
    do("removeAutoScalePolicy(String)", topic)
    assert do("getAutoScalePolicy(String)", topic) is None


@WAYS
def test_subscriptions_are_moved_and_deleted(do: Do, topic: str) -> None:
    do("createScalableTopic(String,int)", topic, 2)
    for name, kind in (("billing", "STREAM"), ("audit", "QUEUE"), ("audit", "QUEUE")):
        do("createSubscription(String,String,ScalableSubscriptionType)", topic, name, kind)
    do("seekSubscription(String,String,long)", topic, "billing", 0)
    do("clearBacklog(String,String)", topic, "audit")
    do("deleteSubscription(String,String)", topic, "audit")

    assert list(do("getStats(String)", topic)["subscriptions"]) == ["billing"]


@WAYS
def test_a_segment_is_terminated_by_replacing_it_and_deleted_by_pruning_it(do: Do, topic: str) -> None:
    do("createScalableTopic(String,int)", topic, 2)
    do("createSubscription(String,String,ScalableSubscriptionType)", topic, "billing", "STREAM")
    log = f"{log_of(topic)}/8000-ffff-1"
    do("createSegment(String,List)", log, ["billing"])
    for _ in range(2):
        do("terminateSegment(String)", log)
    replaced = do("getMetadata(String)", topic)["segments"]
    assert (replaced["1"]["state"], replaced["1"]["childIds"], len(replaced)) == ("SEALED", [2], 3)
    do("deleteSegment(String,boolean)", log, False)

    assert set(do("getMetadata(String)", topic)["segments"]) == {"0", "2"}


@WAYS
def test_a_plain_topic_is_made_a_scalable_one(do: Do, topic: str, broker_url: str) -> None:
    made = httpx.put(f"{broker_url}/admin/v2/persistent/{topic.removeprefix('topic://')}")
    assert made.status_code == 204, made.text
    do("migrateToScalable(String,boolean)", topic, False)

    segments = do("getMetadata(String)", topic)["segments"].values()
    assert [one["state"] for one in segments] == ["SEALED", "ACTIVE"]
    do("deleteScalableTopic(String,boolean)", topic, False)


def log_of(topic: str) -> str:
    return topic.replace("topic:", "segment:")


@pytest.fixture
def broker_url(pulsar_broker: SharedBroker) -> str:
    return pulsar_broker.admin_url


def test_every_method_of_a_segments_subscription(client: Client, topic: str) -> None:
    log = f"{log_of(topic)}/0000-ffff-0"
    client.do("createScalableTopic(String,int)", topic, 1)
    client.do("createSubscription(String,String,ScalableSubscriptionType)", topic, "billing", "STREAM")

    client.do("createSegmentSubscriptionAsync(String,String)", log, "billing")
    assert client.do("getSegmentSubscriptionBacklogAsync(String,String)", log, "billing") == 0
    client.do("seekSegmentSubscriptionAsync(String,String,long)", log, "billing", 0)
    client.do("clearSegmentSubscriptionBacklogAsync(String,String)", log, "billing")
    client.do("deleteSegmentSubscriptionAsync(String,String)", log, "gone")
    refused = client.ask("deleteSegmentSubscriptionAsync(String,String)", log, "billing")
    assert (refused["refused"], refused["kind"]) == (409, "ConflictException")


def test_a_namespaces_policy(client: Client, store: Store) -> None:
    def do(name: str, *arguments: Any) -> Any:
        return client.do(name, *arguments, of="namespaces")

    assert do("getScalableTopicAutoScalePolicy(String)", NAMESPACE) is None
    do(
        "setScalableTopicAutoScalePolicy(String,AutoScalePolicyOverride)",
        NAMESPACE,
        {"enabled": False, "minSegments": 2},
    )
    found = do("getScalableTopicAutoScalePolicyAsync(String)", NAMESPACE)
    assert (found["enabled"], found["minSegments"]) == (False, 2)
    with store.transaction() as tx:
        changed = tx.execute(
            text("SELECT actor, parameter FROM inspect.policy_history ORDER BY parameter")
        ).all()
    assert ("ada", "enabled") in changed
    do("removeScalableTopicAutoScalePolicy(String)", NAMESPACE)
    assert do("getScalableTopicAutoScalePolicy(String)", NAMESPACE) is None


def test_a_mistake_is_told_as_one(client: Client, topic: str) -> None:
    missing, log = f"topic://{NAMESPACE}/none", log_of(topic)
    client.do("createScalableTopic(String,int)", topic, 2)
    client.do("createSubscription(String,String,ScalableSubscriptionType)", topic, "s", "STREAM")
    policy = "setAutoScalePolicy(String,AutoScalePolicyOverride)"
    for call, arguments, status, said in (
        ("createScalableTopic(String,int)", (topic, 1), 409, "exists already"),
        ("createScalableTopic(String,int)", (missing, 0), 412, "numInitialSegments"),
        ("getMetadata(String)", (missing,), 404, missing),
        ("getStats(String)", (missing,), 404, missing),
        ("splitSegment(String,long)", (topic, 9), 404, "segment 9"),
        ("splitSegment(String,long)", (missing, 0), 404, missing),
        ("mergeSegments(String,long,long)", (topic, 0, 0), 412, ""),
        (policy, (topic, {"maxSegments": 0}), 412, "max_segments"),
        (policy, (topic, {"splitMsgRateInThreshold": 1.0}), 412, "split_msg_rate_in"),
        ("deleteScalableTopic(String)", (missing,), 404, missing),
        ("migrateToScalable(String,boolean)", (missing, False), 404, "none"),
        ("deleteSubscription(String,String)", (topic, "none"), 404, "none"),
        ("createSubscription(String,String,ScalableSubscriptionType)", (topic, "s", "QUEUE"), 409, "STREAM"),
        ("createSegment(String,List)", (f"{log}/0000-ffff-7", []), 404, "0000-ffff-7"),
        ("deleteSegment(String,boolean)", (f"{log}/0000-7fff-0", True), 409, "is active"),
        (
            "seekSegmentSubscriptionAsync(String,String,long)",
            (f"{log}/0000-7fff-0", "s", 0),
            422,
            "all 2 segments",
        ),
        ("getSegmentSubscriptionBacklogAsync(String,String)", (f"{log}/0000-7fff-0", "none"), 404, "none"),
    ):
        answer = client.ask(call, *arguments)
        assert answer.get("refused") == status, (call, arguments, answer)
        assert said in answer["reason"], (call, answer)


def test_no_method_is_left_out(client: Client) -> None:
    """Each is named in a test of this file, as it is called; the tests call those that have an asynchronous twin both ways."""
    named = re.findall(r'"(\w+\([\w,]*\))"', Path(__file__).read_text())

    assert plain(client.do("*")) - plain(named) == set()


def plain(calls: Iterable[str]) -> set[str]:
    """Without the word by which the asynchronous twins differ."""
    return {one.replace("Async(", "(") for one in calls}


def test_a_reader_changes_nothing(
    client: Client, worker: ServingWorker, tmp_path: Path, store: Store, topic: str
) -> None:
    client.do("createScalableTopic(String,int)", topic, 1)
    reader = Client(worker.address, token_of(Role.READER, subject="bob"), demand_jars(PULSAR_5), tmp_path)
    try:
        assert reader.do("getMetadata(String)", topic)["epoch"] == 0
        refused = reader.ask("splitSegment(String,long)", topic, 0)
        assert (refused["refused"], refused["kind"]) == (403, "NotAuthorizedException")
    finally:
        reader.close()

    with store.transaction() as tx:
        rows = tx.execute(text("SELECT subject, act, result FROM inspect.audit ORDER BY audit_id")).all()
    assert ("ada", "create_scalable_topic", "done") in rows
    assert rows[-1] == ("bob", "split_segment", "denied")


def test_switched_off_it_is_as_a_broker_without_them(database: str, tmp_path: Path) -> None:
    with serving_worker(database, scalable_topics_enabled=False) as running:
        headers = {"Authorization": f"Bearer {token_of(Role.ADMIN)}"}
        for path in ("scalable/acme/shop", "namespaces/acme/shop/scalableTopicAutoScalePolicy"):
            answer = httpx.get(f"{running.address}/admin/v2/{path}", headers=headers)
            assert answer.status_code == 503
            assert "CLEAVE_SCALABLE_TOPICS_ENABLED" in answer.json()["reason"]
