"""The pages of topics, segments, decisions, operations, backtests, policies and bundles: what each says of a topic with a history."""

from __future__ import annotations

import html
import json
import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from controller.domain.decision import Lane
from controller.domain.policy import PolicyOverride
from controller.pages import figures, journal
from controller.services import autoscaler, policy_admin, policy_candidates, segment_admin
from controller.store import backtests
from controller.store.topics import subscriptions
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.app_client import AppClient
from tests.support.bench import TOPIC, Bench
from tests.support.passes import report, run, set_policy

pytestmark = pytest.mark.integration
NAME = quote(TOPIC, safe="")


def figure(page: str, name: str) -> dict[str, Any]:
    """The document of a picture."""
    found = re.search(
        rf'id="{name}" data-figure.*?<script type="application/json">(.*?)</script>', page, re.DOTALL
    )
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def set_level(bench: Bench, level: str, **parameters: Any) -> None:
    """Beside what the level has."""
    policy_admin.change(bench.store, level, lambda before: {**before, **parameters}, actor="bob")


def test_a_topic_s_page_has_its_ring_its_history_and_its_load(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    report(bench, {0: 30.0})
    bench.reshape(segment_admin.splitting(0, at=(0x4000,)))
    report(bench, {1: 25.0, 2: 5.0}, cold_for=timedelta(seconds=9))

    page = pages.get("/topic", params={"name": TOPIC}).text

    [ring] = figure(page, "ring")["data"]
    assert (ring["base"], ring["customdata"]) == ([0, 0x4000], [1, 2])
    cells, frames = figure(page, "history")["data"]
    assert sorted(frames["customdata"]) == [0, 1, 2]
    assert set(cells["customdata"]) == {0, 1, 2}
    assert {trace["name"] for trace in figure(page, "load")["data"]} == {
        "segment 0",
        "segment 1",
        "segment 2",
    }
    assert figure(page, "load")["layout"]["yaxis"]["title"]["text"] == "msg_rate_in (messages/s)"
    assert "4000-ffff" in page


def test_over_time_a_segment_has_the_colour_of_its_load_then(bench: Bench, pages: AppClient) -> None:
    """Idle from before the span on, and hot for one minute of it."""
    bench.create(1)
    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0)
    begins = "UPDATE cleave.segment SET created_at = clock_timestamp() - interval '3 hours'"
    record = (
        "INSERT INTO cleave.load_history (topic_id, segment_id, recorded_at, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,"
        " source, modified_at) SELECT :t, 0, clock_timestamp() - minutes * interval '1 minute', rate, 0, 0, 0, 'b', clock_timestamp()"
        " FROM (VALUES (170, 1), (30, 18), (29, 1)) AS record (minutes, rate)"
    )
    bench.execute(begins)
    bench.execute(record, t=bench.topic_id)

    cells, frames = figure(pages.get("/topic", params={"name": TOPIC, "hours": 1}).text, "history")["data"]

    idle, hot = figures.load_colour(0.1), figures.load_colour(1.8)
    assert cells["marker"]["color"] == [idle, hot, idle]
    assert sum(cells["width"]) == pytest.approx(frames["width"][0])
    assert 60_000 <= cells["width"][1] < 3 * 60_000


def test_it_says_why_it_is_left_alone_and_how_far_from_acting(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0, max_segments=1)
    report(bench, {0: 100.0})
    run(bench)

    page = pages.get("/topic", params={"name": TOPIC.removeprefix("topic://")}).text

    assert "<b>at-max-segments</b>" in page
    assert "segments 1, needs below 1 (is at it)" in page
    assert "max_segments" in page


def test_it_says_of_buckets_that_nobody_reads_them_and_why(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    with bench.store.transaction() as tx:
        subscriptions.insert_subscription(tx, bench.topic_id, "billing", SubscriptionKind.STREAM, 0)

    page = pages.get("/topic", params={"name": TOPIC}).text

    assert "no consumer is registered" in page


def test_a_segment_knows_where_it_came_from_and_who_made_it(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    intent = bench.intend(segment_admin.splitting(0), bench.request())
    bench.finish(intent)

    parent = pages.get("/segment", params={"name": TOPIC, "segment_id": 0}).text
    child = pages.get("/segment", params={"name": TOPIC, "segment_id": 1}).text

    assert 'data-segment="1"' in parent
    assert 'data-segment="0"' in child
    assert f'operation_id={intent.operation.operation_id}"' in child
    assert intent.operation.actor in child


def test_decisions_and_operations_are_listed_filtered_and_paged(
    bench: Bench, pages: AppClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.create(1)
    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0)
    report(bench, {0: 100.0})
    run(bench)

    assert "split 0 (msgRateIn)" in pages.get("/decisions").text
    assert "split 0 (msgRateIn)" not in pages.get("/decisions", params={"find": "elsewhere"}).text
    live = pages.get("/operations", params={"state": "live", "find": TOPIC}).text
    done = pages.get("/operations", params={"state": "done"}).text
    assert ("intended" in re.sub("<option.*?</option>", "", live), "create" in done) == (True, True)
    monkeypatch.setattr(journal, "MAX_ROWS", 1)
    [(newest,)] = bench.rows("SELECT max(operation_id) FROM cleave.operation")
    first = pages.get("/operations", params={"find": TOPIC}).text
    [link] = re.findall(r'href="(\?[^"]*)">older operations', first)
    older = pages.get(f"/operations{html.unescape(link)}").text
    assert [f'operation_id={newest}"' in page for page in (first, older)] == [True, False]
    assert "older operations" not in older
    assert pages.get("/operations", params={"page": "x"}).status_code == 400


def test_an_operation_that_a_dag_asked_for_leads_to_its_run(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    key = "airflow/cleave_manual_split/manual__2026-11-23T05:00:00+00:00/split/-1"
    operation = bench.finish(bench.intend(segment_admin.splitting(0), bench.request(key)))

    page = pages.get("/operation", params={"operation_id": operation.operation_id}).text

    assert "/dags/cleave_manual_split/runs/manual__2026-11-23T05%3A00%3A00%2B00%3A00" in page
    assert "fence" in page
    of_run = {"dag_id": "cleave_manual_split", "run_id": "manual__2026-11-23T05:00:00+00:00"}
    assert f"operation_id={operation.operation_id}" in pages.get("/run", params=of_run).text
    as_airflow_3_1_has_it = "&".join(f"{name}={value}" for name, value in of_run.items())
    assert f"operation_id={operation.operation_id}" in pages.get(f"/run?{as_airflow_3_1_has_it}").text
    assert "asked for none" in pages.get("/run", params={**of_run, "run_id": "manual__2026"}).text


_FIGURES = dict.fromkeys(
    (
        "segment_hours",
        "over_provisioned_hours",
        "excess_hours",
        "overload_seconds",
        "overloaded_segment_seconds",
        "reshapes",
        "rings_resealed",
        "reconnections",
        "reversals",
        "useless_splits",
        "silent_seconds",
    ),
    0.0,
)


def test_a_backtest_s_page_has_each_policy_beside_the_best(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    with bench.store.transaction() as tx:
        asked = {"policies": [{"name": "adaptive"}], "loads": [], "prices": {}}
        request = backtests.BacktestRequest("key", "ann", "code", asked)
        begun = backtests.begin(tx, request)
        results = [
            backtests.BacktestResult("load", policy, 0, bench.topic_id, cost, 10.0, _FIGURES)
            for policy, cost in (("adaptive", 12.0), ("pip483", 20.0))
        ]
        backtests.finish(tx, begun.run_id, request, "here", results)
    policy_candidates.propose(
        bench.store,
        TOPIC,
        PolicyOverride(max_segments=4, target_use=0.8125),
        actor="ann",
        reason="it is enough",
    )

    page = pages.get("/backtest", params={"run_id": begun.run_id}).text
    runs = pages.get("/backtests").text

    [bars] = figure(page, "regrets")["data"]
    assert (bars["y"], bars["x"]) == (["adaptive", "pip483"], [pytest.approx(1.2), pytest.approx(2.0)])
    assert f"run_id={begun.run_id}" in runs
    for text in (runs, pages.get("/topic", params={"name": TOPIC}).text):
        assert "max_segments=4 target_use=0.8125" in text
    assert 'data-dag="policy_promote"' in runs


def test_without_a_broker_the_bundles_page_says_what_is_missing(pages: AppClient) -> None:
    page = pages.get("/bundles").text

    assert "No broker was seen yet" in page


def parameter(page: str, name: str) -> tuple[str, str, str]:
    """What is in force of it, the level it comes from, and what its field has. The field's placeholder is what is in force."""
    found = re.search(rf'<tr id="row-{name}".*?</tr>', page, re.DOTALL)
    assert found is not None
    value, level = re.findall(r"<td[^>]*>([^<]*)</td>", found[0])
    [(field, placeholder)] = re.findall(r'<input[^>]* value="([^"]*)" placeholder="([^"]*)" size', found[0])
    assert html.unescape(placeholder) == value
    return value, level, html.unescape(field)


def test_the_policy_s_page_does_not_round_its_history(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    for value in (0.8125, 0.9375):
        set_level(bench, TOPIC, target_use=value)

    page = pages.get("/policy", params={"level": TOPIC}).text

    assert re.findall(r">target_use</td><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>", page) == [
        ("0.8125", "0.9375"),
        ("", "0.8125"),
    ]


def test_a_run_that_sets_the_policy_of_the_cluster_leads_to_it(pages: AppClient) -> None:
    """The script of the page reads the level of other runs from what they were asked with."""
    of_cluster, of_others = (
        pages.get("/run", params={"dag_id": dag_id, "run_id": "manual__1"}).text
        for dag_id in ("cleave_cluster_policy", "cleave_policy")
    )
    assert ["/policy?level=cluster" in page for page in (of_cluster, of_others)] == [True, False]


def test_the_policy_s_page_has_each_parameter_with_where_it_comes_from(
    bench: Bench, pages: AppClient
) -> None:
    bench.create(1)
    set_policy(bench, max_segments=7, profile="adaptive")
    set_level(bench, "cluster", max_segments=90, merge_window_seconds=77)
    set_level(bench, "acme/shop", min_segments=3)

    of_topic = pages.get("/policy", params={"level": TOPIC}).text
    of_cluster = pages.get("/policy").text
    of_namespace = pages.get("/policy", params={"level": "acme/shop"}).text

    assert parameter(of_topic, "max_segments") == ("7", "topic", "7")
    assert parameter(of_topic, "profile") == ('"adaptive"', "topic", '"adaptive"')
    assert parameter(of_topic, "min_segments") == ("3", "namespace", "")
    assert parameter(of_topic, "merge_window_seconds") == ("77", "cluster", "")
    assert parameter(of_namespace, "min_segments") == ("3", "namespace", "3")
    assert parameter(of_namespace, "merge_window_seconds") == ("77", "cluster", "")
    assert parameter(of_namespace, "load_stale_after_seconds")[1:] == ("default", "")
    assert parameter(of_cluster, "max_segments") == ("90", "cluster", "90")
    assert parameter(of_cluster, "load_stale_after_seconds")[1:] == ("default", "")
    assert "cluster_reconnections_per_minute" not in of_topic
    assert "cluster_reconnections_per_minute" in of_cluster
    forms = [
        'data-dag="cleave_policy"',
        'data-dag="cleave_cluster_policy"',
        '<input type="hidden" name="level"',
    ]
    assert [[form in page for form in forms] for page in (of_namespace, of_cluster)] == [
        [True, False, True],
        [False, True, False],  # a DAG refuses a value that it would ignore
    ]
    assert "ann" in of_topic
    assert pages.get("/policy", params={"level": "what is this"}).status_code == 400


def test_load_is_thinned_to_what_can_be_drawn_with_each_peak_and_the_hottest_segments_first(
    bench: Bench, pages: AppClient
) -> None:
    bench.create(40)
    past = (
        "INSERT INTO cleave.load_history (topic_id, segment_id, recorded_at, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,"
        " source, modified_at) SELECT :t, s, clock_timestamp() - n * interval '1 second', s + (n % 7), 0, 0, 0, 'b', clock_timestamp()"
        " FROM generate_series(0, 39) AS s, generate_series(1, 600) AS n"
    )
    bench.execute(past, t=bench.topic_id)

    page = pages.get("/topic", params={"name": TOPIC, "hours": 1}).text

    traces = figure(page, "load")["data"]
    assert [trace["meta"] for trace in traces] == list(range(39, 7, -1))
    assert {max(trace["y"]) - trace["meta"] for trace in traces} == {6}
    assert sum(len(trace["x"]) for trace in traces) < 2_000
    assert "The 32 hottest of 40 segments are drawn." in page


def test_steady_load_has_a_line_up_to_the_seal_or_to_now(bench: Bench, pages: AppClient) -> None:
    """A record is written on a change only, here before the span."""
    bench.create(2)
    bench.execute(
        "INSERT INTO cleave.load_history (topic_id, segment_id, recorded_at, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out,"
        " source, modified_at) SELECT :t, s, clock_timestamp() - interval '2 hours', 7, 0, 0, 0, 'b', clock_timestamp()"
        " FROM generate_series(0, 1) AS s",
        t=bench.topic_id,
    )
    bench.reshape(segment_admin.splitting(1))
    bench.execute(
        "UPDATE cleave.segment SET created_at = created_at - interval '3 hours', sealed_at = sealed_at - interval '30 minutes'"
        " WHERE segment_id < 2"
    )

    page = pages.get("/topic", params={"name": TOPIC, "hours": 1}).text

    traces = {trace["meta"]: trace for trace in figure(page, "load")["data"]}
    assert {segment_id: trace["y"] for segment_id, trace in traces.items()} == {0: [7, 7], 1: [7, 7]}
    begins, ends = ([datetime.fromisoformat(traces[i]["x"][at]) for i in (0, 1)] for at in (0, 1))
    assert begins[0] == begins[1]
    assert ends[0] - begins[0] == timedelta(hours=1)
    assert timedelta(minutes=25) < ends[1] - begins[1] <= timedelta(minutes=30)


def test_decisions_and_operations_are_narrowed_by_what_they_are(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0)
    report(bench, {0: 100.0})
    run(bench, {Lane.LOAD}, decided_by="the test")

    def found(**wanted: str) -> bool:
        return "split 0 (msgRateIn)" in pages.get("/decisions", params=wanted).text

    assert found(lane="load", acted="yes", decider="the test", since="1h", find=TOPIC)
    for other in (
        {"lane": "merge"},
        {"acted": "no"},
        {"decider": "worker"},
        {"until": "1h"},
        {"reason": "unsplittable"},
    ):
        assert not found(**other), other
    assert pages.get("/decisions", params={"since": "noon"}).status_code == 400
    [(split,)] = bench.rows("SELECT operation_id FROM cleave.operation WHERE kind = 'split'")

    def listed(**wanted: str) -> bool:
        return f'operation_id={split}"' in pages.get("/operations", params=wanted).text

    assert listed(kind="split", origin="auto", state="live")
    for other in ({"kind": "merge"}, {"origin": "manual"}, {"actor": "nobody"}, {"state": "done"}):
        assert not listed(**other), other


def test_a_decision_has_a_page_with_its_situation_and_leads_to_its_run_and_back(
    bench: Bench, pages: AppClient
) -> None:
    bench.create(1)
    set_policy(bench, split_msg_rate_in=10.0, merge_msg_rate_in=1.0)
    report(bench, {0: 100.0})
    autoscaler.run_pass(
        bench.store, bench.planes, set(Lane), decided_by="airflow cleave_split_pass scheduled__1", limit=10
    )
    [(split, made)] = bench.rows(
        "SELECT operation_id, decision_id FROM cleave.operation WHERE kind = 'split'"
    )

    operation = pages.get("/operation", params={"operation_id": split}).text
    decision = pages.get("/decision", params={"decision_id": made}).text

    to_run = "/dags/cleave_split_pass/runs/scheduled__1"
    assert f'/decision?decision_id={made}"' in operation
    assert (to_run in operation, to_run in decision, to_run in pages.get("/decisions").text) == (
        True,
        True,
        True,
    )
    assert f'operation_id={split}"' in decision
    assert "&#34;split_msg_rate_in&#34;: 10" in decision or '"split_msg_rate_in": 10' in decision
    assert pages.get("/decision", params={"decision_id": 10**9}).status_code == 404


def test_a_segment_has_what_is_under_way_on_it(bench: Bench, pages: AppClient) -> None:
    bench.create(2)
    intent = bench.intend(segment_admin.splitting(0))

    of_it = pages.get("/segment", params={"name": TOPIC, "segment_id": 0}).text
    of_other = pages.get("/segment", params={"name": TOPIC, "segment_id": 1}).text

    link = f'operation_id={intent.operation.operation_id}"'
    assert ("Under way or aborted" in of_it, link in of_it, link in of_other) == (True, True, False)


def test_who_reads_what_who_holds_nothing_and_how_far_behind_they_are(bench: Bench, pages: AppClient) -> None:
    bench.topic_with(1)
    for name in ("c1", "c2"):
        bench.execute(
            "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:t, 'billing', :n)",
            t=bench.topic_id,
            n=name,
        )
    bench.execute(
        "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation)"
        " VALUES (:t, 'billing', 0, 0, 65535, 'c1', 1)",
        t=bench.topic_id,
    )
    bench.publish(0, 3)

    page = pages.get("/topic", params={"name": TOPIC}).text
    behind = pages.get("/lag", params={"name": TOPIC, "subscription": "billing"})

    rows = {
        row[0]: row[1]
        for row in re.findall(r"<td>billing</td><td>(c\d)</td>.*?<td class=\"mono\">(.*?)</td>", page)
    }
    assert rows["c2"] == "holds nothing"
    assert rows["c1"].startswith("0:")
    assert (behind.status_code, "3 messages were not acknowledged" in behind.text) == (200, True)
    assert pages.get("/lag", params={"name": TOPIC, "subscription": "none"}).status_code == 404

    bench.plane.delete_segment(bench.log_of(0))
    uncounted = pages.get("/lag", params={"name": TOPIC, "subscription": "billing"}).text
    assert '<span class="warn">not counted: its log or cursor is missing</span>' in uncounted


def test_a_run_leads_to_its_backtest_and_the_backtest_to_its_run(bench: Bench, pages: AppClient) -> None:
    bench.create(1)
    with bench.store.transaction() as tx:
        asked = {"policies": [{"name": "adaptive"}], "loads": [], "prices": {}}
        key = "airflow/policy_backtest/manual__1/simulate/-1"
        begun = backtests.begin(tx, backtests.BacktestRequest(key, "ann", "code", asked))

    of_run = pages.get("/run", params={"dag_id": "policy_backtest", "run_id": "manual__1"}).text
    of_backtest = pages.get("/backtest", params={"run_id": begun.run_id}).text

    assert f'/backtest?run_id={begun.run_id}"' in of_run
    assert "/dags/policy_backtest/runs/manual__1" in of_backtest
    assert "asked for none" not in of_run


def test_bundles_of_one_name_in_two_clusters_are_told_apart(bench: Bench, pages: AppClient) -> None:
    for cluster, bundles in (("east", 2), ("west", 4)):
        bench.execute(
            "INSERT INTO cleave.namespace_bundles (cluster, namespace, boundaries, actor) SELECT :c, 'acme/shop',"
            " array_agg(n * 4294967295 / :n ORDER BY n), 'test' FROM generate_series(0, :n) AS n",
            c=cluster,
            n=bundles,
        )

    pictures = {
        cluster: figure(
            pages.get("/bundles", params={"cluster": cluster, "namespace": "acme/shop"}).text, "bundle-ring"
        )
        for cluster in ("east", "west")
    }

    assert {cluster: len(one["data"][0]["x"]) for cluster, one in pictures.items()} == {"east": 2, "west": 4}
