"""Dry runs of forms on the pages, where they are called previews."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import text

from controller.domain.policy import PolicyOverride
from controller.services import policy_admin, policy_candidates, topic_admin
from tests.support.app_client import AppClient
from tests.support.bench import TOPIC, Bench
from tests.support.passes import report

pytestmark = pytest.mark.integration


def test_a_preview_says_what_would_be_sealed_and_created_and_changes_nothing(
    bench: Bench, pages: AppClient
) -> None:
    bench.create(1)
    before = bench.scalar("SELECT count(*) FROM cleave.operation")
    wish = {"dag_id": "cleave_manual_split", "conf": {"topic": TOPIC, "segment_id": 0, "parts": 2}}

    told = pages.post("/preview", json=wish)

    assert told.json()["sentence"] == (
        f"{TOPIC} at epoch 0: split would seal 0 and create 1 [0000-7fff], 2 [8000-ffff]"
    )
    assert bench.scalar("SELECT count(*) FROM cleave.operation") == before


@pytest.mark.parametrize(
    ("wish", "status", "words"),
    [
        ({"dag_id": "cleave_manual_split", "conf": {"topic": TOPIC, "segment_id": 7}}, 404, "segment 7"),
        (
            {"dag_id": "cleave_manual_split", "conf": {"topic": TOPIC, "segment_id": 0, "at": 1}},
            400,
            "no such parameter",
        ),
        ({"dag_id": "cleave_delete_topic", "conf": {}}, 400, "has no preview"),
        ({"conf": {}}, 400, "dag_id"),
    ],
)
def test_a_wish_that_cannot_be_previewed_is_refused_with_its_reason(
    bench: Bench, pages: AppClient, wish: dict[str, Any], status: int, words: str
) -> None:
    bench.create(1)

    answer = pages.post("/preview", json=wish)

    assert (answer.status_code, words in answer.json()["reason"]) == (status, True)


def test_a_change_of_policy_is_previewed_with_the_topics_it_makes_a_difference_to(
    bench: Bench, pages: AppClient
) -> None:
    bench.create(1)
    report(bench, {0: 100.0})
    parameters = {"split_msg_rate_in": 50.0, "merge_msg_rate_in": 5.0, "profile": "pip483"}
    wish = {"dag_id": "cleave_policy", "conf": {"level": "acme/shop", "parameters": parameters}}

    told = pages.post("/preview", json=wish).json()

    assert "split_msg_rate_in from unset to 50" in told["sentence"]
    assert f"1 of 1 topics would have other decisions at once: {TOPIC}" in told["sentence"]
    assert bench.rows("SELECT * FROM cleave.namespace_policy") == []
    quiet = {"level": "acme/shop", "parameters": {"max_segments": 9}}
    again = pages.post("/preview", json={**wish, "conf": quiet}).json()
    assert "0 of 1 topics" in again["sentence"]
    wrong = pages.post(
        "/preview", json={**wish, "conf": {"level": "acme/shop", "parameters": {"max_segments": 0}}}
    )
    assert (wrong.status_code, "max_segments" in wrong.json()["reason"]) == (400, True)
    of_cluster = pages.post("/preview", json={**wish, "conf": {"level": "cluster", "parameters": parameters}})
    assert (of_cluster.status_code, "cleave_cluster_policy" in of_cluster.json()["reason"]) == (409, True)


def test_a_preview_of_a_policy_holds_nobody_up_and_says_how_many_topics_it_looked_at(
    bench: Bench, pages: AppClient, sent_statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create(1)
    report(bench, {0: 100.0})
    other = f"{TOPIC}-other"
    bench.finish(
        topic_admin.create_topic(
            bench.store, bench.planes, other, bench.request(), data_plane="embedded", segments=1
        )
    )
    monkeypatch.setattr(policy_admin, "MOST_TOPICS", 1)
    parameters = {"split_msg_rate_in": 50.0, "merge_msg_rate_in": 5.0}
    wish = {"dag_id": "cleave_cluster_policy", "conf": {"parameters": parameters}}
    with bench.store.transaction() as tx:  # somebody decides, and somebody changes the policy
        tx.execute(text("SELECT FROM cleave.evaluation FOR UPDATE"))
        tx.execute(text("SELECT FROM cleave.cluster_policy FOR UPDATE"))
        del sent_statements[:]
        told = pages.post("/preview", json=wish).json()

    assert "split_msg_rate_in from 10000 to 50" in told["sentence"]
    assert "of 1 evaluated topics among 2, 1 would have other decisions at once" in told["sentence"]
    assert [one for one in sent_statements if re.search("INSERT|UPDATE|DELETE|FOR SHARE", one)] == []


def test_what_would_be_tried_on_the_past_and_what_would_be_promoted_is_previewed(
    bench: Bench, pages: AppClient
) -> None:
    bench.create(1)
    report(bench, {0: 100.0})
    wish = {
        "dag_id": "policy_backtest",
        "conf": {"topics": TOPIC, "policies": ["in-force", "pip483"], "from": "1h"},
    }

    told = pages.post("/preview", json=wish).json()["sentence"]

    assert "would run 2 policies over the load of 1 segments of 1 topics" in told
    none = {**wish, "conf": {"topics": f"{TOPIC}-none", "policies": ["pip483"]}}
    assert "no load record" in pages.post("/preview", json=none).json()["sentence"]
    promote = {"dag_id": "policy_promote", "conf": {"topic": TOPIC}}
    assert pages.post("/preview", json=promote).status_code == 404
    propose = {"dag_id": "policy_propose", "conf": {"topic": TOPIC, "parameters": {"max_segments": 4}}}
    would = f"{TOPIC}: a candidate (max_segments=4) would be in shadow"
    assert pages.post("/preview", json=propose).json()["sentence"] == would
    assert pages.post("/preview", json=promote).status_code == 404, "nothing was proposed"
    policy_candidates.propose(
        bench.store, TOPIC, PolicyOverride(max_segments=4), actor="ann", reason="it is enough"
    )
    assert "(max_segments=4) against" in pages.post("/preview", json=promote).json()["sentence"]
