"""Answers to acts that wait for a person over HTTP: whose they are, what a rehearsal changes, and what a repeat gets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from controller.devstack.serving import serving_leader, token_of
from controller.domain.policy import PolicyOverride
from controller.services import approval_answers
from controller.store.topics import policies
from controller.web.access import Role
from tests.support.approvals import pending
from tests.support.asking import bearer
from tests.support.bench import TOPIC, Bench
from tests.support.passes import COLD, report, run

API = "/api/v1"
BELOW = f"{API}/approvals/topics/{TOPIC.removeprefix('topic://')}"


@pytest.fixture
def waiting(bench: Bench) -> int:
    """A merge of two cold segments that waits for a person; its id."""
    bench.topic_with(2)
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(approval_merges=True))
    report(bench, {0: COLD, 1: COLD}, cold_for=timedelta(hours=1))
    run(bench)
    [row] = pending(bench.store)
    return row.approval_id


@pytest.fixture
def http(bench: Bench) -> Iterator[httpx.Client]:
    """An operator's client, who may act in every namespace."""
    with serving_leader(bench.url) as address:
        token = token_of(Role.OPERATOR, "*", subject="ann")
        with httpx.Client(base_url=address, timeout=30.0, headers=bearer(token)) as http:
            yield http


def state(bench: Bench, waiting: int) -> str:
    return approval_answers.find(bench.store, waiting).state.value


def test_what_waits_is_listed_and_answered_once_in_the_name_of_the_token(
    bench: Bench, waiting: int, http: httpx.Client
) -> None:
    [listed] = http.get(f"{API}/approvals", params={"state": "pending", "topic": TOPIC}).json()["items"]
    assert (listed["approval_id"], listed["action"]) == (waiting, "merge segments 0, 1 into 1")
    assert http.get(f"{API}/approvals/{waiting}").json() == listed
    body = {"approvals": [waiting], "reason": "quiet week"}

    rehearsed = http.post(f"{BELOW}/approve", json=body, params={"dry_run": True}).json()
    assert (rehearsed["dry_run"], rehearsed["approvals"][0]["state"]) == (True, "approved")
    assert state(bench, waiting) == "pending"
    answered = http.post(f"{BELOW}/approve", json=body, headers={"Idempotency-Key": "once"})

    assert answered.status_code == 200, answered.text
    [found] = answered.json()["approvals"]
    assert (found["state"], found["answered_by"], found["outcome"]) == ("approved", "ann", "quiet week")
    again = http.post(f"{BELOW}/approve", json=body, headers={"Idempotency-Key": "once"})
    assert again.json() == answered.json()
    refused = http.post(f"{BELOW}/reject", json=body)
    assert (refused.status_code, "was approved by ann" in refused.json()["reason"]) == (409, True)
    assert bench.rows("SELECT DISTINCT subject, result FROM inspect.audit") == [
        ("ann", "done"),
        ("ann", "refused"),
    ]


@pytest.mark.parametrize(
    ("level", "status"),
    [
        ("topics/acme/shop/others", 404),
        ("namespaces/acme/others", 404),
        ("namespaces/acme/sho", 404),
        ("cluster", 403),
        (f"namespaces/{TOPIC.removeprefix('topic://').rpartition('/')[0]}", 200),
    ],
)
def test_an_approval_is_answered_at_its_own_level_and_at_its_namespace(
    bench: Bench, waiting: int, http: httpx.Client, level: str, status: int
) -> None:
    answer = http.post(f"{API}/approvals/{level}/reject", json={"approvals": [waiting]})

    assert (answer.status_code, state(bench, waiting)) == (
        status,
        "rejected" if status == 200 else "pending",
    )
    if status == 404:
        assert f"approval {waiting} is of {TOPIC}, not of " in answer.json()["reason"]


def test_an_admin_answers_at_every_level(bench: Bench, waiting: int, http: httpx.Client) -> None:
    body, token = {"approvals": [waiting]}, bearer(token_of(Role.ADMIN))

    assert http.post(f"{API}/approvals/cluster/approve", json=body, headers=token).status_code == 200
    assert state(bench, waiting) == "approved"


def test_an_operator_of_another_namespace_may_not_answer(
    bench: Bench, waiting: int, http: httpx.Client
) -> None:
    token = token_of(Role.OPERATOR, "acme/none")

    answer = http.post(f"{BELOW}/approve", json={"approvals": [waiting]}, headers=bearer(token))

    assert (answer.status_code, state(bench, waiting)) == (403, "pending")
    assert http.get(f"{API}/approvals/4711").status_code == 404
