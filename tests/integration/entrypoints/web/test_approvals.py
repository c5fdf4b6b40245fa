"""Answers to acts that wait for a person over HTTP: whose they are, what a rehearsal changes, and what a repeat gets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from controller.devstack.serving import serving_leader, token_of
from controller.domain.policy import PolicyOverride
from controller.entrypoints.web.access import Role
from controller.services import approvals
from controller.store.topics import policies
from tests.support.asking import bearer
from tests.support.bench import TOPIC, Bench
from tests.support.passes import COLD, report, run

API = "/api/v1"
BELOW = f"{API}/topics/{TOPIC.removeprefix('topic://')}"
ANSWER = {"reason": "quiet week"}


@pytest.fixture
def waiting(bench: Bench) -> int:
    """A merge of two cold segments that waits for a person; its id."""
    bench.topic_with(2)
    with bench.store.transaction() as tx:
        policies.set_topic(tx, bench.topic_id, PolicyOverride(approval_merges=True))
    report(bench, {0: COLD, 1: COLD}, cold_for=timedelta(hours=1))
    run(bench)
    [row] = approvals.list_approvals(bench.store, TOPIC, pending_only=True, limit=9)
    return row.approval_id


@pytest.fixture
def http(bench: Bench) -> Iterator[httpx.Client]:
    """An operator's client, who may act in every namespace."""
    with serving_leader(bench.url) as address:
        token = token_of(Role.OPERATOR, "*", subject="ann")
        with httpx.Client(base_url=address, timeout=30.0, headers=bearer(token)) as http:
            yield http


def state(bench: Bench, waiting: int) -> str:
    return approvals.find(bench.store, waiting).state.value


def test_what_waits_is_listed_and_answered_once_in_the_name_of_the_token(
    bench: Bench, waiting: int, http: httpx.Client
) -> None:
    [listed] = http.get(f"{API}/approvals", params={"state": "pending", "topic": TOPIC}).json()["items"]
    assert (listed["approval_id"], listed["act"]) == (waiting, "merge segments 0, 1 into 1")
    assert http.get(f"{API}/approvals/{waiting}").json() == listed
    path = f"{BELOW}/approvals/{waiting}/approve"

    rehearsed = http.post(path, json=ANSWER, params={"dry_run": True}).json()
    assert (rehearsed["dry_run"], rehearsed["state"], state(bench, waiting)) == (True, "approved", "pending")
    answered = http.post(path, json=ANSWER, headers={"Idempotency-Key": "once"})

    assert answered.status_code == 200, answered.text
    found = answered.json()
    assert (found["state"], found["answered_by"], found["outcome"]) == ("approved", "ann", "quiet week")
    assert http.post(path, json=ANSWER, headers={"Idempotency-Key": "once"}).json() == answered.json()
    refused = http.post(f"{BELOW}/approvals/{waiting}/reject")
    assert (refused.status_code, "was approved by ann" in refused.json()["reason"]) == (409, True)
    assert bench.rows("SELECT DISTINCT subject, result FROM inspect.audit") == [
        ("ann", "done"),
        ("ann", "refused"),
    ]


def test_an_act_is_answered_below_its_own_topic_only(bench: Bench, waiting: int, http: httpx.Client) -> None:
    elsewhere = http.post(f"{API}/topics/acme/shop/others/approvals/{waiting}/approve", json=ANSWER)

    assert (elsewhere.status_code, state(bench, waiting)) == (404, "pending")
    assert f"approval {waiting} is not of topic topic://acme/shop/others" in elsewhere.json()["reason"]


def test_an_operator_of_another_namespace_may_not_answer(
    bench: Bench, waiting: int, http: httpx.Client
) -> None:
    token = token_of(Role.OPERATOR, "acme/none")

    answer = http.post(f"{BELOW}/approvals/{waiting}/approve", json=ANSWER, headers=bearer(token))

    assert (answer.status_code, state(bench, waiting)) == (403, "pending")
    assert http.get(f"{API}/approvals/4711").status_code == 404
