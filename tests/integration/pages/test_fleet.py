"""The page of the fleet, and what `inspect.fleet` says that a topic needs."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from sqlalchemy import text

from controller.services import segment_admin, topic_admin
from controller.store.topics import held_topics, subscriptions
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.app_client import AppClient
from tests.support.bench import TOPIC, Bench
from tests.support.passes import report, run, set_policy

pytestmark = pytest.mark.integration
NAME = quote(TOPIC, safe="")


def needs(bench: Bench) -> tuple[int, str | None]:
    """Of the only topic."""
    [row] = bench.rows("SELECT urgency, needs FROM inspect.fleet")
    return row[0], row[1]


def test_the_fleet_lists_a_topic_with_what_it_carries(bench: Bench, pages: AppClient) -> None:
    bench.create(2)
    report(bench, {0: 12.5, 1: 4.0})

    page = pages.get("/").text

    assert f'href="/topic?name={quote(TOPIC)}"' in page
    assert "16.5 msg/s" in page
    assert bench.topic_name not in pages.get("/", params={"find": "no such"}).text
    assert bench.topic_name in pages.get("/", params={"find": bench.topic_name[-4:]}).text


def test_what_a_topic_needs_is_said_the_most_urgent_first(bench: Bench) -> None:
    bench.create(1)
    assert needs(bench) == (3, "no fresh load of 1 segment(s)")
    report(bench, {0: 1.0})
    assert needs(bench) == (0, None)
    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0, max_segments=1)
    report(bench, {0: 100.0})
    assert needs(bench) == (2, "hot")

    run(bench)
    assert needs(bench) == (4, "hot, and waiting does not help: at-max-segments")

    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0)
    operation = bench.intend(segment_admin.splitting(0)).operation
    bench.execute("UPDATE cleave.operation SET attempts = 3 WHERE state = 'intended'")
    assert needs(bench) == (6, f"operation {operation.operation_id} is stuck: fails repeatedly")


def test_a_held_topic_is_shown_with_its_reason(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    report(bench, {0: 1.0})
    bench.execute("UPDATE cleave.topic SET verified_under = NULL, row_version = row_version + 1")
    assert needs(bench) == (4, "no operation begins until its logs have been compared with the journal")
    with bench.store.transaction() as tx:
        held_topics.hold(tx, bench.topic_id, "two logs share segment id 3")

    said = "held, see `cleave topics recover`: two logs share segment id 3"
    assert needs(bench) == (6, said)
    assert f'<p class="bad">{said}</p>' in pages.get(f"/topic?name={NAME}").text
    assert said in pages.get("/").text
    run(bench)
    assert "topic-held" in pages.get(f"/topic?name={NAME}").text
    [(decision_id,)] = bench.rows("SELECT decision_id FROM inspect.decisions")
    assert "topic-held" in pages.get(f"/decision?decision_id={decision_id}").text


def test_a_bucket_that_is_not_let_go_of_and_a_policy_that_cannot_be_followed_need_somebody(
    bench: Bench,
) -> None:
    bench.create(1)
    report(bench, {0: 1.0})
    with bench.store.transaction() as tx:
        subscriptions.insert_subscription(tx, bench.topic_id, "billing", SubscriptionKind.STREAM, 0)
    bench.execute(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation,"
        " release_asked_at) VALUES (:t, 'billing', 0, 0, 65535, 'c1', 1, clock_timestamp() - interval '2 minutes')",
        t=bench.topic_id,
    )
    assert needs(bench) == (4, "1 entry bucket(s) are not released by their owners")

    bench.execute(
        """UPDATE cleave.topic SET policy = '{"max_segments": "many"}', row_version = row_version + 1"""
    )
    run(bench)
    assert needs(bench) == (5, "its policy is not valid")


def test_a_hole_in_the_ring_and_a_bucket_that_nobody_gets_need_somebody(bench: Bench) -> None:
    bench.create(2)
    report(bench, {0: 1.0, 1: 1.0})
    with bench.store.transaction() as tx:
        subscriptions.insert_subscription(tx, bench.topic_id, "billing", SubscriptionKind.STREAM, 0)
    assert needs(bench) == (0, None)
    bench.execute("UPDATE cleave.segment SET created_at = created_at - interval '5 minutes'")
    bench.execute(
        "INSERT INTO cleave.consumer (topic_id, subscription, name, registered_at)"
        " VALUES (:t, 'billing', 'c1', clock_timestamp() - interval '2 minutes')",
        t=bench.topic_id,
    )
    assert needs(bench) == (4, "4 entry bucket(s) are not assigned")

    with bench.store.transaction() as tx:
        tx.execute(text("SET LOCAL session_replication_role = replica"))
        tx.execute(text("UPDATE cleave.segment SET range_end = range_end - 1 WHERE segment_id = 1"))
    assert needs(bench) == (6, "1 range(s) of its ring belong to no segment")


def test_topics_that_need_somebody_come_first_on_the_page(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    report(bench, {0: 1.0})
    other = f"{TOPIC}-unreported"
    bench.finish(
        topic_admin.create_topic(
            bench.store, bench.planes, other, bench.request(), data_plane="embedded", segments=1
        )
    )

    page = pages.get("/").text

    assert re.findall(rf">({TOPIC}[a-z-]*)</a>", page) == [other, TOPIC]
    assert "no fresh load of 1 segment(s)" in page
    assert re.search(r"<b>0</b>workers up", page)
    assert re.search(r"<b>\d+ s</b>since the last load run", page)


def test_the_fleet_is_looked_at_once_for_a_page_and_narrowed_to_what_is_asked_for(
    bench: Bench, pages: AppClient, sent_statements: list[str]
) -> None:
    bench.create(1)
    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0, max_segments=1)
    report(bench, {0: 100.0})
    run(bench)
    del sent_statements[:]

    page = pages.get("/").text

    assert sum(one.count("FROM inspect.fleet") for one in sent_statements) == 1
    assert (TOPIC in page, '<b class="bad">1</b>need somebody' in page) == (True, True)
    shown = {
        show: TOPIC in pages.get("/", params={"show": show}).text
        for show in ("in need", "hot", "stuck", "suppressed", "waiting for budget")
    }
    assert shown == {
        "in need": True,
        "hot": True,
        "stuck": False,
        "suppressed": True,
        "waiting for budget": False,
    }
    assert "No topic is so" in pages.get("/", params={"show": "stuck"}).text
    assert '<b class="bad">1</b>need somebody' in pages.get("/", params={"show": "stuck"}).text
