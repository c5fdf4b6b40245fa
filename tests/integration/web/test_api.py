"""What people ask of Cleave itself over HTTP: lists in pages, changes that are rehearsed and made once, and what is shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Connection

from controller.actions.action import all_actions
from controller.devstack.serving import serving_worker, token_for, token_of
from controller.domain.decision import Lane
from controller.domain.operation import OperationState
from controller.landing.area import LandingArea
from controller.postgres.connection import WatchedConnection
from controller.questions.page_keys import write_keys
from controller.services import autoscaler, segment_admin
from controller.services.segment_admin import splitting
from controller.store import idempotency_keys
from controller.store.load import counter_readers
from controller.web.access import Role
from tests.support.asking import administrator, bearer
from tests.support.bench import Bench
from tests.support.database_away import away
from tests.support.every_row import every_row
from tests.support.waiting import wait_until

SEGMENTS = 2

API = "/api/v1"
TOPIC = f"{API}/topics/acme/shop/orders"
NAME = "topic://acme/shop/orders"
LOAD = """
    INSERT INTO cleave.segment_load (topic_id, segment_id, msg_rate_in, byte_rate_in, msg_rate_out, byte_rate_out, source, modified_at)
    VALUES (:topic_id, :segment_id, :msg_rate_in, 1, 2, 3, 'test', clock_timestamp())
"""
ALL_SPLITS = "SELECT count(*) FROM cleave.operation WHERE kind = 'split'"
MOVES_ON = {"cleave.audit", "cleave.lease"}
"""Tables that a worker writes by itself, and the audit of what was refused."""
PARTS = {
    "topic": "acme/shop/orders",
    "namespace": "acme/shop",
    "level": "topics/acme/shop/orders",
    "bundle": "acme/shop/bundles/0x00000000_0xffffffff",
    "subscription": "billing",
}
"""What a path of an action names."""


@pytest.fixture
def http(bench: Bench, tmp_path: Path) -> Iterator[httpx.Client]:
    """An administrator's client."""
    with (
        serving_worker(bench.url, landing_url=str(tmp_path / "landing")) as running,
        administrator(running.address) as http,
    ):
        yield http


def pages(http: httpx.Client, path: str, **asked: Any) -> list[list[dict[str, Any]]]:
    """Every page of a list, until there is no next one."""
    found, page = [], None
    while True:
        answer = http.get(path, params={**asked, **({"page": page} if page else {})})
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        page = answer.json()["next"]
        if page is None:
            return found


class TestPages:
    def test_each_item_is_on_one_page_though_others_come_meanwhile(
        self, bench: Bench, http: httpx.Client
    ) -> None:
        for _ in range(3):
            bench.reshape(splitting(max(bench.layout.segments)))
        first = http.get(f"{API}/operations", params={"limit": 2}).json()
        bench.reshape(splitting(max(bench.layout.segments)))
        rest = pages(http, f"{API}/operations", limit=2, page=first["next"])

        ids = [one["operation_id"] for page in (first["items"], *rest) for one in page]
        assert ids == sorted(ids, reverse=True)
        assert len(set(ids)) == len(ids) == 5  # created, subscribed, and three splits of before

    def test_lists_end(self, http: httpx.Client) -> None:
        for path in ("topics", "decisions", "backtests", "bundles", "bundles/brokers", "bundles/proposals"):
            assert pages(http, f"{API}/{path}", limit=1)[-1] == [] or path == "topics"
        for path in ("subscriptions", "load", "load/history", "layout/changes", "refusals"):
            pages(http, f"{TOPIC}/{path}", limit=1)
        pages(http, f"{API}/policies/history", limit=1)
        assert [[one["topic"] for one in page] for page in pages(http, f"{API}/topics", limit=1)] == [[NAME]]

    def test_pages_of_one_item_are_the_list_in_its_order(self, bench: Bench, http: httpx.Client) -> None:
        bench.reshape(splitting(1))
        for parameter, value in (("max_segments", 9), ("min_segments", 2), ("max_dag_depth", 7)):
            http.post(
                f"{API}/policies/topics/acme/shop/orders", json={"parameters": {parameter: value}}
            ).raise_for_status()
        for segment_id in (0, 2, 3):
            bench.execute(LOAD, topic_id=bench.topic_id, segment_id=segment_id, msg_rate_in=90_000)
            autoscaler.run_pass(bench.store, bench.planes, set(Lane), decided_by="the test", limit=10)

        cursors = f"{TOPIC}/subscriptions/billing/cursors"
        paths = (cursors, f"{API}/operations", f"{API}/decisions", f"{API}/policies/history", f"{TOPIC}/layout/changes",
                 f"{TOPIC}/segments/3/lineage", f"{TOPIC}/load", f"{TOPIC}/refusals")  # fmt: skip
        for path in paths:
            [whole] = pages(http, path, limit=1000)
            single = [one for page in pages(http, path, limit=1) for one in page]
            assert len(whole) > 1, path
            for one in (*whole, *single):
                one.pop("how_far", None)  # counts the seconds until the request
            assert single == whole, path

    @pytest.mark.parametrize("page", ["x", "WzFd", "W10", "bm9uZQ", "WyJhIiwgImIiXQ", "é", "A" * 1400])
    def test_a_page_that_is_none_is_refused(self, http: httpx.Client, page: str) -> None:
        answer = http.get(f"{API}/topics", params={"page": page})

        assert (answer.status_code, answer.json()["kind"]) == (412, "InvalidInput")

    @pytest.mark.parametrize("place", ["7", 7, ["x"], [True], [2**70], None])
    def test_a_place_in_a_log_that_is_none_is_refused(self, http: httpx.Client, place: Any) -> None:
        path = f"{TOPIC}/subscriptions/billing/dead-letters"
        answer = http.get(path, params={"page": write_keys([place])})

        assert (answer.status_code, answer.json()["kind"]) == (412, "InvalidInput")

    @pytest.mark.parametrize(
        ("path", "asked", "reason"),
        [
            (f"{TOPIC}/load/history", {"from": "1h", "to": "2h"}, "is empty"),
            (f"{API}/topics", {"colour": "blue"}, "colour"),
            (f"{TOPIC}/layout", {"att": "7"}, "att"),
        ],
    )
    def test_parameters_that_ask_for_nothing_are_refused(
        self, http: httpx.Client, path: str, asked: dict[str, str], reason: str
    ) -> None:
        answer = http.get(path, params=asked)

        assert (answer.status_code, answer.json()["kind"]) == (412, "InvalidInput")
        assert reason in answer.json()["reason"]


class TestChanges:
    def test_a_field_that_is_none_is_refused(self, bench: Bench, http: httpx.Client) -> None:
        answer = http.post(f"{TOPIC}/split", json={"segment_id": 0, "colour": "blue"})

        assert (answer.status_code, answer.json()["kind"]) == (412, "InvalidInput")
        assert "colour" in answer.json()["reason"]
        assert bench.live_operations() == []

    def test_a_rehearsal_asks_everything_and_changes_nothing(self, bench: Bench, http: httpx.Client) -> None:
        before = every_row(bench.store, but=MOVES_ON)
        for method, path, document in (
            ("PUT", f"{API}/topics/acme/shop/returns", {"segments": 3}),
            ("DELETE", TOPIC, None),
            ("POST", f"{TOPIC}/split", {"segment_id": 0, "parts": 3}),
            ("POST", f"{TOPIC}/merge", {"first_id": 0, "second_id": 1}),
            ("POST", f"{TOPIC}/rebucket", {"segment_id": 0, "bucket_count": 9}),
            ("POST", f"{TOPIC}/recut", {"segment_ids": [0, 1], "cut_points": [100]}),
            ("PUT", f"{TOPIC}/subscriptions/audit", {"kind": "QUEUE"}),
            ("DELETE", f"{TOPIC}/subscriptions/billing", None),
            ("POST", f"{TOPIC}/subscriptions/billing/seek", {"to": "earliest"}),
        ):
            answer = http.request(method, path, json=document, params={"dry_run": True})
            assert answer.status_code == 200, answer.text
            said = answer.json()
            assert (said["dry_run"], said["operation_id"]) == (True, None)
        for level in ("cluster", "namespaces/acme/shop", "topics/acme/shop/orders"):
            answer = http.post(
                f"{API}/policies/{level}", json={"parameters": {"max_segments": 9}}, params={"dry_run": True}
            )
            assert answer.json()["after"]["max_segments"] == 9
            assert answer.json()["consequences"] == {"changed_topics": [], "evaluated": 1, "topics": 1}

        refused = http.post(f"{TOPIC}/split", json={"segment_id": 7}, params={"dry_run": True})
        assert refused.status_code == 404
        assert every_row(bench.store, but=MOVES_ON) == before

    def test_a_seek_that_waits_is_given_up(self, bench: Bench, http: httpx.Client) -> None:
        path = f"{TOPIC}/subscriptions/billing/seek"
        nothing = http.delete(path)
        assert (nothing.status_code, "nothing to cancel" in nothing.json()["reason"]) == (409, True)
        bench.execute(
            "INSERT INTO cleave.consumer (topic_id, subscription, name) VALUES (:id, 'billing', 'c')",
            id=bench.topic_id,
        )
        bench.execute(
            "INSERT INTO cleave.bucket_owner (topic_id, subscription, segment_id, bucket_start, bucket_end, consumer, generation)"
            " VALUES (:id, 'billing', 0, 0, 16383, 'c', 1)",
            id=bench.topic_id,
        )
        asked = http.post(path, json={"to": "latest", "release_seconds": 3600}).json()

        rehearsed = http.delete(path, params={"dry_run": True}).json()
        assert [rehearsed["dry_run"], len(rehearsed["operations"])] == [True, 1]
        [given_up] = http.request("DELETE", path, json={"reason": "the wrong one"}).json()["operations"]
        assert (given_up["operation_id"], given_up["kind"]) == (asked["operation_id"], "seek")
        bench.wait_until(
            lambda: bench.operation(asked["operation_id"]).state is OperationState.ABORTED,
            message="it is given up",
        )

    def test_a_change_is_made_once_for_a_key(self, bench: Bench, http: httpx.Client) -> None:
        key = {"Idempotency-Key": "monday-1"}
        answers = [
            http.post(f"{TOPIC}/split", json={"segment_id": 0}, headers=key, params={"wait_seconds": 30})
            for _ in range(3)
        ]

        first = answers[0].json()
        assert (first["state"], first["origin"], first["actor"]) == ("done", "api", "ada")
        assert [one["hash_range"] for one in first["creates"]] == ["0000-3fff", "4000-7fff"]
        assert [one.json() for one in answers] == [answers[0].json()] * 3
        assert bench.scalar(ALL_SPLITS) == 1

    def test_a_key_is_for_one_request_of_one_holder(self, http: httpx.Client) -> None:
        key = {"Idempotency-Key": "monday-1"}
        policy = f"{API}/policies/topics/acme/shop/orders"
        assert http.post(policy, json={"parameters": {"max_segments": 9}}, headers=key).status_code == 200
        other = http.post(policy, json={"parameters": {"max_segments": 8}}, headers=key)
        assert (other.status_code, "monday-1 was used" in other.json()["reason"]) == (409, True)
        operator = bearer(token_of(Role.OPERATOR, "acme/*", subject="bob"))
        assert (
            http.post(
                policy, json={"parameters": {"max_segments": 8}}, headers={**key, **operator}
            ).status_code
            == 200
        )

    def test_a_key_of_a_refused_request_may_be_used_again(self, bench: Bench, http: httpx.Client) -> None:
        key = {"Idempotency-Key": "monday-1"}
        path = f"{API}/policies/topics/acme/shop/returns"
        assert http.post(path, json={"parameters": {"max_segments": 9}}, headers=key).status_code == 404
        bench.topic_name = "topic://acme/shop/returns"
        bench.create()
        assert http.post(path, json={"parameters": {"max_segments": 9}}, headers=key).status_code == 200

    def test_a_key_of_a_request_that_failed_here_may_be_used_again(
        self, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = {"Idempotency-Key": "monday-1"}
        with monkeypatch.context() as broken:
            broken.setattr(segment_admin, "submit", lambda *_: 1 / 0)
            last = {**key, "Connection": "close"}  # the server hangs up after an error of its own
            assert http.post(f"{TOPIC}/split", json={"segment_id": 0}, headers=last).status_code == 500

        assert http.post(f"{TOPIC}/split", json={"segment_id": 0}, headers=key).status_code == 200

    @pytest.mark.parametrize("is_made", [False, True])
    def test_a_key_of_a_request_that_lost_the_database_may_be_used_again(
        self, bench: Bench, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, is_made: bool
    ) -> None:
        """Before the change was made, the request fails; afterwards its answer cannot be stored."""
        submit = segment_admin.submit

        def lose_the_database(*arguments: Any) -> Any:
            intent = submit(*arguments) if is_made else None
            outage.enter_context(away(bench.url, "cleave-api"))
            return intent or submit(*arguments)

        def split() -> httpx.Response:
            return http.post(
                f"{TOPIC}/split", json={"segment_id": 0}, headers={"Idempotency-Key": "monday-1"}
            )

        with ExitStack() as outage, monkeypatch.context() as broken:
            broken.setattr(segment_admin, "submit", lose_the_database)
            first = split()
        assert first.status_code == (200 if is_made else 503)

        wait_until(lambda: split().status_code == 200)
        assert not is_made or split().json() == first.json()
        assert bench.scalar(ALL_SPLITS) == 1

    def test_a_key_whose_reservation_may_be_committed_may_be_used_again(
        self, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin = idempotency_keys.begin

        def begin_and_lose_the_answer_to_the_commit(tx: Connection, *arguments: str) -> Any:
            begun = begin(tx, *arguments)
            driver: Any = tx.connection.dbapi_connection

            def commit() -> None:
                WatchedConnection.commit(driver)
                driver.close()
                raise psycopg2.OperationalError("server closed the connection unexpectedly")

            driver.commit = commit
            return begun

        def split() -> int:
            key = {"Idempotency-Key": "monday-1"}
            return http.post(f"{TOPIC}/split", json={"segment_id": 0}, headers=key).status_code

        with monkeypatch.context() as broken:
            broken.setattr(idempotency_keys, "begin", begin_and_lose_the_answer_to_the_commit)
            assert split() == 503

        wait_until(lambda: split() == 200)

        with monkeypatch.context() as broken:  # the answer is stored, so that nothing is reserved
            broken.setattr(idempotency_keys, "begin", begin_and_lose_the_answer_to_the_commit)
            assert split() == 503
        assert split() == 200

    def test_the_second_of_two_at_once_is_told_to_ask_again(self, bench: Bench, http: httpx.Client) -> None:
        key = {"Idempotency-Key": "monday-1"}
        path = f"{API}/policies/topics/acme/shop/orders"
        assert http.post(path, json={"parameters": {"max_segments": 9}}, headers=key).status_code == 200
        bench.execute("UPDATE cleave.api_request SET answer = NULL")
        waiting = http.post(path, json={"parameters": {"max_segments": 9}}, headers=key)
        assert (waiting.status_code, waiting.headers["Retry-After"]) == (503, "1")

        bench.execute("UPDATE cleave.api_request SET asked_at = asked_at - interval '301 seconds'")
        assert (
            http.post(path, json={"parameters": {"max_segments": 9}}, headers=key).status_code == 200
        )  # the first one died

    def test_keys_are_forgotten_after_a_week(self, bench: Bench, http: httpx.Client) -> None:
        path = f"{API}/policies/topics/acme/shop/orders"
        for name in ("old", "new"):
            http.post(path, json={"parameters": {"max_segments": 9}}, headers={"Idempotency-Key": name})
            if name == "old":
                bench.execute("UPDATE cleave.api_request SET asked_at = asked_at - interval '8 days'")

        assert bench.scalar("SELECT array_agg(idempotency_key) FROM cleave.api_request") == ["new"]

    def test_the_audit_has_changes_and_rehearsals(self, http: httpx.Client) -> None:
        key = {"Idempotency-Key": "monday-1"}
        http.post(f"{TOPIC}/split", json={"segment_id": 0}, params={"dry_run": True})
        http.post(f"{TOPIC}/split", json={"segment_id": 0}, headers=key)
        http.post(f"{TOPIC}/split", json={"segment_id": "none"})

        [[refused, done, rehearsed]] = pages(http, f"{API}/audit")
        assert [one["dry_run"] for one in (refused, done, rehearsed)] == [False, False, True]
        assert (done["subject"], done["act"], done["result"], done["request_key"]) == (
            "ada",
            "segments_split",
            "done",
            "monday-1",
        )
        assert (refused["result"], "segment_id" in refused["reason"]) == ("refused", True)

    def test_a_misspelt_rehearsal_of_any_change_is_refused(self, bench: Bench, http: httpx.Client) -> None:
        before = every_row(bench.store, but=MOVES_ON)
        for action in all_actions():
            if action.reads:
                continue
            path = API + action.path.format_map(PARTS)
            answer = http.request(action.method, path, json={}, params={"dryrun": True})
            assert (answer.status_code, answer.json()["kind"]) == (412, "InvalidInput"), action.name
            assert answer.json()["reason"].startswith("query.dryrun: "), action.name
        assert every_row(bench.store, but=MOVES_ON) == before

    def test_a_misspelt_wait_is_refused(self, bench: Bench, http: httpx.Client) -> None:
        policy = f"{API}/policies/topics/acme/shop/orders"
        for path, document, asked in (
            (f"{TOPIC}/split", {"segment_id": 0}, "wait"),
            (policy, {"parameters": {"max_segments": 9}}, "wait_seconds"),  # nothing to wait for
        ):
            answer = http.post(path, json=document, params={asked: 1})
            assert (answer.status_code, answer.json()["kind"]) == (412, "InvalidInput")
            assert f"query.{asked}: " in answer.json()["reason"]
        assert bench.live_operations() == []


class TestWhatIsShown:
    def test_the_past_of_a_topic(self, bench: Bench, http: httpx.Client) -> None:
        created = bench.scalar("SELECT committed_at FROM cleave.layout_change WHERE epoch = 0")
        bench.reshape(splitting(1))

        then = http.get(f"{TOPIC}/layout", params={"at": 0}).json()
        assert [one["segment_id"] for one in then["segments"]] == [0, 1]
        assert then["segments"][1]["backing_topic"] == bench.log_of(1)
        assert http.get(f"{TOPIC}/layout", params={"at": created.isoformat()}).json() == then
        assert [one["segment_id"] for one in http.get(f"{TOPIC}/layout").json()["segments"]] == [0, 2, 3]
        assert http.get(f"{TOPIC}/layout", params={"at": 9}).status_code == 404
        [changes] = pages(http, f"{TOPIC}/layout/changes")
        assert [(one["epoch"], one["kind"], one["sealed"]) for one in changes] == [
            (1, "split", [1]),
            (0, "create", []),
        ]
        [relatives] = pages(http, f"{TOPIC}/segments/3/lineage")
        assert [(one["segment_id"], one["relation"]) for one in relatives] == [(1, "ancestor"), (3, "itself")]
        assert http.get(f"{TOPIC}/segments/77/lineage").status_code == 404

    def test_a_client_sees_the_past_of_its_topics_and_nothing_else(self, http: httpx.Client) -> None:
        client = bearer(token_for(NAME))
        assert http.get(f"{TOPIC}/layout", params={"at": 0}, headers=client).status_code == 200
        assert http.get(f"{TOPIC}/load", headers=client).status_code == 403

    def test_load_decisions_and_another_policy(self, bench: Bench, http: httpx.Client) -> None:
        bench.execute(LOAD, topic_id=bench.topic_id, segment_id=0, msg_rate_in=9_000)
        [load] = pages(http, f"{TOPIC}/load")
        assert [(one["segment_id"], one["msg_rate_in"]) for one in load] == [(0, 9000.0), (1, None)]
        [[then]] = pages(http, f"{TOPIC}/load/history", **{"from": "1h"})
        assert (then["segment_id"], then["msg_rate_in"]) == (0, 9000.0)

        asked = {"changes": {"split_msg_rate_in": 5000}, "lanes": ["load"]}
        compared = http.post(f"{TOPIC}/decide", json=asked).json()
        assert compared["in_force"]["decisions"] == []
        assert [one["kind"] for one in compared["what_if"]["decisions"]] == ["split"]
        assert all("how_far" in one for one in compared["in_force"]["refusals"])
        assert (compared["is_same"], compared["lanes"]) == (False, ["load"])
        assert http.post(f"{TOPIC}/decide").json()["is_same"] is True
        wrong = http.post(f"{TOPIC}/decide", json={"changes": {"max_segments": 0}})
        assert (wrong.status_code, wrong.json()["kind"]) == (412, "InvalidPolicy")

    def test_merges_leave_alone_what_a_split_keeps(self, bench: Bench, http: httpx.Client) -> None:
        asked = {"segment_id": 0, "keep": "2h"}
        bench.drive(http.post(f"{TOPIC}/split", json=asked).json()["operation_id"])
        for segment_id in (1, 2, 3):
            bench.execute(LOAD, topic_id=bench.topic_id, segment_id=segment_id, msg_rate_in=1)

        verdict = http.post(f"{TOPIC}/decide", json={"lanes": ["merge"]}).json()["in_force"]
        assert verdict["decisions"] == []
        assert [(one["segment_id"], one["reason"]) for one in verdict["refusals"]] == [
            (2, "kept-apart"),
            (3, "kept-apart"),
        ]
        assert "of 2 h)" in verdict["refusals"][0]["how_far"]

    def test_operations_step_by_step(self, bench: Bench, http: httpx.Client) -> None:
        done = bench.reshape(splitting(0))

        shown = http.get(f"{API}/operations/{done.operation_id}").json()
        assert (shown["kind"], shown["parents"], shown["stuck_because"]) == ("split", [0], None)
        [steps] = pages(http, f"{API}/operations/{done.operation_id}/steps")
        sequences = [step["sequence"] for step in steps]
        assert sequences == sorted(sequences) != []
        assert http.get(f"{API}/operations/999999").status_code == 404
        assert pages(http, f"{API}/operations", live=True) == [[]]
        assert http.get(f"{API}/operations", params={"topic": "topic://acme/shop/none"}).status_code == 404

    def test_policies_and_where_each_parameter_comes_from(self, http: httpx.Client) -> None:
        namespace = f"{API}/policies/namespaces/acme/shop"
        changed = http.post(namespace, json={"parameters": {"max_segments": 9, "min_segments": 2}}).json()
        assert (changed["level"], changed["name"], changed["before"]) == ("namespace", "acme/shop", {})
        assert http.post(namespace, json={"parameters": {"min_segments": None}}).json()["after"] == {
            "max_segments": 9
        }
        assert http.post(namespace, json={"parameters": {"enabled": False}, "replace": True}).json()[
            "after"
        ] == {"enabled": False}
        parameters = {one["parameter"]: one for one in http.get(f"{TOPIC}/policy").json()["parameters"]}
        assert (parameters["enabled"]["value"], parameters["enabled"]["level"]) == (False, "namespace")
        assert http.delete(namespace).json()["after"] == {}
        [history] = pages(http, f"{API}/policies/history", name="acme/shop")
        assert {(one["actor"], one["parameter"]) for one in history} == {
            ("ada", "max_segments"),
            ("ada", "min_segments"),
            ("ada", "enabled"),
        }
        assert http.get(f"{API}/policies/cluster").json()["parameters"]["max_segments"] >= 1


class TestLoadOfBrokers:
    @pytest.fixture
    def broker(self, http: httpx.Client) -> httpx.Client:
        """The client, with the token of a broker."""
        http.headers.update(bearer(token_of(Role.BROKER, subject="broker-1")))
        return http

    def sample(self, bench: Bench, **counters: int) -> dict[str, Any]:
        """Counters of segment 1, now and 0 unless they are given."""
        now = {"instant_ms": int(time.time() * 1000), "msg_in": 0, "byte_in": 0, "msg_out": 0, "byte_out": 0}
        return {"backing_topic": bench.log_of(1), **now, **counters}

    def test_samples_are_landed_under_the_brokers_own_name(
        self, bench: Bench, broker: httpx.Client, tmp_path: Path
    ) -> None:
        sample = self.sample(bench, msg_in=5, byte_in=50, msg_out=2**62)
        samples = [sample, {**sample, "backing_topic": "none"}]

        answer = broker.post(f"{API}/load/samples", json={"samples": samples})

        assert answer.json() == {"landed": 1, "unknown": ["none"]}
        area, now = LandingArea(str(tmp_path / "landing")), sample["instant_ms"]
        [file], _ = area.files(now - 60_000, now + 60_000)
        [row] = pq.read_table(tmp_path / "landing" / file.path).to_pylist()
        assert (row["segment_id"], row["source"], row["msg_in"], row["msg_out"]) == (1, "broker-1", 5, 2**62)

    def test_after_its_clock_was_set_a_broker_is_another_reader_on_the_databases_time(
        self, bench: Bench, broker: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(counter_readers, "MOST_APART_MS", 10_000)  # a busy machine is slow to send
        for number, ahead_ms in enumerate((0, 0, -20_000, -20_000, 30_000)):
            now = int(time.time() * 1000)
            sample = self.sample(bench, instant_ms=now + ahead_ms - 5_000, msg_in=number, byte_in=50)
            body = {"samples": [sample], "sent_at_ms": now + ahead_ms}
            assert broker.post(f"{API}/load/samples", json=body).json()["landed"] == 1

        area = LandingArea(str(tmp_path / "landing"))
        files, _ = area.files(now - 600_000, now + 600_000)
        rows = [row for file in files for row in pq.read_table(tmp_path / "landing" / file.path).to_pylist()]
        rows.sort(key=lambda row: row["msg_in"])
        assert len({row["reader"] for row in rows}) == 3
        assert [row["reader"] for row in rows[:2]] == [rows[0]["reader"]] * 2
        assert all(abs(row["instant"].timestamp() * 1000 - now + 5_000) < 60_000 for row in rows)

    @pytest.mark.parametrize("wrong_ms", [0, 2**62])
    @pytest.mark.parametrize("field", ["sent_at_ms", "instant_ms"])
    def test_a_time_that_cannot_have_been_is_refused(
        self, bench: Bench, broker: httpx.Client, field: str, wrong_ms: int
    ) -> None:
        """The time at which the request was sent, and that of a sample."""
        sample, wrong = self.sample(bench), {field: wrong_ms}
        body = {"samples": [sample], **wrong} if field == "sent_at_ms" else {"samples": [sample | wrong]}

        answer = broker.post(f"{API}/load/samples", json=body)

        assert (answer.status_code, "synchronize the clocks" in answer.json()["reason"]) == (412, True)
