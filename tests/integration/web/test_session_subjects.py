"""A session belongs to the subject whose token began it: no other client drives it, however much of its names that client knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx_sse
import pytest

from controller.devstack.serving import SECRET, ServingWorker, serving_worker
from controller.domain.errors import AccessForbidden
from controller.services.consumer_sessions.leader import SessionLeader
from controller.services.consumer_sessions.requests import Attach, Deregister, PushedAssignment, Register
from controller.store.topics.bucket_owners import SubscriptionKey
from controller.web import access
from tests.support.bench import Bench
from tests.support.waiting import wait_until

SEGMENTS = 1

CONSUMER = "/api/v1/topics/acme/shop/orders/subscriptions/billing/consumers/a"
LIFE = {"incarnation": "f00d"}
BUCKET = {"segment_id": 0, "bucket_start": 0, "generation": 1}
Client = Callable[[str], httpx.Client]


@pytest.fixture
def worker(bench: Bench) -> Iterator[ServingWorker]:
    """One worker that serves."""
    with serving_worker(bench.url, consumer_grace_seconds=60.0) as running:
        yield running


@pytest.fixture
def client(worker: ServingWorker) -> Iterator[Client]:
    """A client with a fresh token of the subject, for every topic."""
    made: list[httpx.Client] = []

    def of(subject: str) -> httpx.Client:
        token = access.sign(SECRET, ["topic://*"], 60.0 + len(made), subject=subject)
        headers = {"Authorization": f"Bearer {token}"}
        made.append(httpx.Client(base_url=worker.address, headers=headers, timeout=30.0))
        return made[-1]

    yield of
    for one in made:
        one.close()


def registered(client: httpx.Client, incarnation: str = "f00d") -> httpx.Response:
    """What is answered to a registration; none is asked for while nobody leads."""
    return wait_until(
        lambda: (
            answer
            if (answer := client.post(CONSUMER, json={"incarnation": incarnation})).status_code != 503
            else None
        ),
        message="the leader answers",
    )


ACTS: dict[str, Callable[[httpx.Client], httpx.Response]] = {
    "register": lambda http: http.post(CONSUMER, json=LIFE),
    "replace": lambda http: http.post(CONSUMER, json={"incarnation": "beef"}),
    "assignment": lambda http: http.get(CONSUMER + "/assignment", params=LIFE),
    "pulse": lambda http: http.post(CONSUMER + "/pulse", json=LIFE),
    "released": lambda http: http.post(CONSUMER + "/released", json={**LIFE, "buckets": [BUCKET]}),
    "drained": lambda http: http.post(
        CONSUMER + "/drained", json={**LIFE, "segments": [{"segment_id": 0, "generation": 1}]}
    ),
    "reasons": lambda http: http.post(
        CONSUMER + "/reasons", json={**LIFE, "buckets": [{**BUCKET, "reason": "paused", "seconds": 1.0}]}
    ),
    "opened": lambda http: http.post(CONSUMER + "/opened", json={**LIFE, **BUCKET, "position": [0]}),
    "closed": lambda http: http.post(CONSUMER + "/closed", json={**LIFE, **BUCKET}),
    "deliveries": lambda http: http.post(
        CONSUMER + "/deliveries",
        json={**LIFE, **BUCKET, "position": [0], "event": "failed", "deliveries": 1, "error": "x"},
    ),
    "goodbye": lambda http: http.delete(CONSUMER, params=LIFE),
    "goodbye of another life": lambda http: http.delete(CONSUMER, params={"incarnation": "beef"}),
}


@pytest.mark.parametrize("act", ACTS)
def test_another_subjects_token_is_refused_and_the_session_goes_on(
    bench: Bench, client: Client, act: str
) -> None:
    owner, other = client("shop"), client("other")
    assert registered(owner).status_code == 200

    refused = ACTS[act](other)

    assert (refused.status_code, refused.json()["kind"]) == (403, "AccessForbidden"), refused.text
    assert "another subject" in refused.json()["reason"]
    assert "shop" not in refused.json()["reason"].replace("shop/orders", "")
    with httpx_sse.connect_sse(owner, "GET", CONSUMER + "/assignment", params=LIFE) as stream:
        event = next(one for one in stream.iter_sse() if one.event == "assignment")
        assert [one["segment_id"] for one in event.json()["buckets"]]
        assert owner.post(CONSUMER + "/pulse", json=LIFE).status_code == 204
    assert bench.scalar("SELECT subject FROM cleave.consumer") == "shop"


@pytest.mark.parametrize("act", [one for one in ACTS if one not in ("drained", "assignment")])
def test_a_fresh_token_of_the_same_subject_and_another_process_with_it_may_do_all_that(
    client: Client, act: str
) -> None:
    assert registered(client("shop")).status_code == 200

    answer = ACTS[act](client("shop"))

    assert answer.status_code in (200, 204, 409), answer.text  # 409: no such ownership of the bucket
    assert "another subject" not in answer.text


def test_several_processes_with_one_token_share_a_subscription(client: Client) -> None:
    http = client("shop")
    for name in ("a", "b", "c"):
        path = CONSUMER.removesuffix("a") + name
        assert wait_until(
            lambda path=path: http.post(path, json=LIFE).status_code == 200, message="it registers"
        )


def test_a_session_that_a_new_leader_took_over_still_belongs_to_its_subject(
    bench: Bench, client: Client
) -> None:
    """The leader knows it from the row."""
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation, subject) VALUES (:id, 'billing', 'a', 'f00d', 'shop')",
        id=bench.topic_id,
    )

    assert registered(client("other"), "beef").status_code == 403
    assert registered(client("shop"), "beef").status_code == 200


def test_a_name_is_free_again_when_its_session_has_ended(client: Client) -> None:
    owner = client("shop")
    assert registered(owner).status_code == 200
    assert owner.delete(CONSUMER, params=LIFE).status_code == 204

    assert registered(client("other"), "beef").status_code == 200


def test_who_was_registered_without_a_token_belongs_to_whoever_goes_on_with_it(
    bench: Bench, client: Client
) -> None:
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, incarnation) VALUES (:id, 'billing', 'a', 'f00d')",
        id=bench.topic_id,
    )
    assert registered(client("shop")).status_code == 200

    assert registered(client("other")).status_code == 403


def test_requests_in_the_leaders_mailbox_together_are_told_apart(
    bench: Bench, worker: ServingWorker, client: Client
) -> None:
    """The session is known to the leader's memory only after the one transaction for all of them."""
    assert registered(client("shop"), "cafe").status_code == 200  # it leads the topic
    leader = next(one for one in worker.worker.background_services if isinstance(one, SessionLeader))
    names: dict[str, Any] = {"key": SubscriptionKey(bench.topic_id, "billing"), "consumer": "b"}
    stream = EndedStream()
    requests = [
        Register(**names, incarnation="f00d", subject="shop"),
        Attach(**names, incarnation="f00d", subject="other", stream=stream),
        Deregister(**names, incarnation="f00d", subject="other"),
        Register(**names, incarnation="beef", subject="other"),
        Register(**names, incarnation="f00d", subject="shop"),
    ]

    leader._mailbox.extend(requests)
    leader.submit(Register(**names | {"consumer": "c"}, incarnation="f00d", subject="other"))

    answers = [type(one.done.exception(timeout=30.0)) for one in requests]
    assert answers == [type(None), AccessForbidden, AccessForbidden, AccessForbidden, type(None)]
    assert stream.pushed == []


class EndedStream:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.pushed: list[PushedAssignment] = []

    def push(self, assignment: PushedAssignment) -> None:
        self.pushed.append(assignment)

    def end(self, reason: str) -> None:
        """Nothing to close."""
