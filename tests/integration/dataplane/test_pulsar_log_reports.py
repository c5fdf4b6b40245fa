"""Origins and reports of topics on a real broker: across loads, beside other programs, and with answers missing."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from typing import Any

import pytest
import requests

from controller.dataplane.base import LogReport, LogState, Successor
from controller.dataplane.log_client import OutgoingMessage
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.dataplane.pulsar.log_client import PulsarLogClient
from controller.dataplane.pulsar.plane import PulsarDataPlane
from controller.domain.log_origin import LogOrigin
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker, pulsar_client
from tests.support.pulsar_namespaces import make_namespace
from tests.support.scripted_broker import Behaviour, Conversation, ScriptedBroker
from tests.support.waiting import wait_until

ORIGIN = LogOrigin("token", 3, (0,), (32768,))


class TestOnABroker:
    pytestmark = pytest.mark.pulsar

    @pytest.fixture
    def here(self, pulsar_broker: SharedBroker) -> PulsarTopic:
        return PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "reports")

    @pytest.fixture
    def plane(self, here: PulsarTopic) -> Iterator[PulsarDataPlane]:
        with closing(PulsarDataPlane(here.access, call_timeout_seconds=20.0)) as plane:
            yield plane

    @pytest.fixture
    def log(self, here: PulsarTopic, plane: PulsarDataPlane) -> str:
        """A log with an origin and a subscription."""
        log = plane.backing_topic(here.topic, "0000-ffff-0")
        plane.create_segment(log, ["s"], ORIGIN)
        return log

    def admin(self, here: PulsarTopic, verb: str, log: str, path: str, body: Any = None) -> Any:
        """A request as Pulsar's own tools make it."""
        url = f"{here.admin_url}/admin/v2/{log.replace('://', '/')}/{path}"
        answer = requests.request(verb, url, json=body, timeout=30.0)
        assert answer.status_code < 300, answer.text[:200]
        return answer.json() if answer.text else None

    @pytest.mark.parametrize("is_terminated", [False, True])
    def test_the_origin_outlives_a_load(
        self, here: PulsarTopic, plane: PulsarDataPlane, log: str, is_terminated: bool
    ) -> None:
        if is_terminated:
            plane.terminate_segment(log)
        self.admin(here, "PUT", log, "unload")

        found = plane.describe_logs([log])[log]

        assert (found.origin, found.is_unused, found.is_read_to_end) == (ORIGIN, True, is_terminated)

    def test_messages_are_known_of_after_a_load(
        self, here: PulsarTopic, plane: PulsarDataPlane, log: str
    ) -> None:
        with closing(PulsarLogClient(here.access, call_timeout_seconds=20.0)) as logs:
            logs.append(log, [OutgoingMessage(b"1")] * 3, producer="p", sequence=1)
        plane.terminate_segment(log)
        self.admin(here, "PUT", log, "unload")
        unread = plane.describe_logs([log])[log]
        plane.skip_all(log, "s")
        self.admin(here, "PUT", log, "unload")
        read = plane.describe_logs([log])[log]

        assert (unread.is_unused, unread.is_read_to_end) == (False, False)
        assert unread.cursors["s"].unread > 0
        assert (read.is_unused, read.is_read_to_end) == (False, True)

    def test_a_subscription_is_created_on_an_empty_sealed_log_that_was_reloaded(
        self, here: PulsarTopic, plane: PulsarDataPlane, log: str
    ) -> None:
        """A 4.2.4 broker never answers a request to create it at the earliest position."""
        plane.terminate_segment(log)
        self.admin(here, "PUT", log, "unload")

        plane.create_subscription(log, "later")

        assert plane.list_subscriptions(log) == ["later", "s"]
        assert plane.backlog(log, "later") == 0

    def test_messages_that_the_broker_removed_are_known_of(self, pulsar_broker: SharedBroker) -> None:
        """In a namespace that keeps nothing that is read."""
        here = PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "reports-of-removed")
        policies = (
            f"{here.admin_url}/admin/v2/namespaces/{here.topic.removeprefix('topic://').rpartition('/')[0]}"
        )
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        assert requests.post(f"{policies}/retention", json=nothing, timeout=30.0).ok
        assert requests.post(f"{policies}/deduplication", json=False, timeout=30.0).ok
        with (
            closing(PulsarDataPlane(here.access, call_timeout_seconds=20.0)) as plane,
            closing(PulsarLogClient(here.access, call_timeout_seconds=20.0)) as logs,
        ):
            log = plane.backing_topic(here.topic, "0000-ffff-0")
            plane.create_segment(log, ["s"], ORIGIN)
            logs.append(log, [OutgoingMessage(b"1")], producer="p", sequence=1)
            plane.skip_all(log, "s")
            self.admin(here, "PUT", log, "unload")
            wait_until(
                lambda: self.admin(here, "GET", log, "internalStats")["numberOfEntries"] == 0,
                message="the broker removes what is read",
            )

            found = plane.describe_logs([log])[log]
            reader = logs.open_reader_at(log, None, on_arrival=lambda: None)
            is_at_end_while_open = reader.is_at_end()
            plane.terminate_segment(log)

            assert (found.is_unused, found.cursors["s"].unread) == (False, 0)
            assert (is_at_end_while_open, reader.is_at_end()) == (False, True)

    def test_properties_of_other_programs_stay_beside_the_origin(
        self, here: PulsarTopic, plane: PulsarDataPlane, log: str
    ) -> None:
        self.admin(here, "PUT", log, "properties", {"team": "billing"})

        born = plane.create_successors([Successor(log, (), ("s",), origin=LogOrigin("other", 4, (), ()))])

        assert (born[log].origin, plane.describe_logs([log])[log].origin) == (ORIGIN, ORIGIN)
        assert self.admin(here, "GET", log, "properties") == {**ORIGIN.to_properties(), "team": "billing"}

    def test_a_topic_that_a_producer_created_has_no_origin(self, pulsar_broker: SharedBroker) -> None:
        access = PulsarAccess(admin_url=pulsar_broker.admin_url, service_url=pulsar_broker.service_url)
        namespace = make_namespace(access, f"by-producers-{secrets.token_hex(4)}", fixed=False)
        with closing(PulsarDataPlane(access, call_timeout_seconds=20.0)) as plane:
            log = plane.backing_topic(f"topic://{namespace}/orders", "0000-ffff-0")
            with pulsar_client(pulsar_broker.service_url) as client:
                client.create_producer(log)
                born = plane.create_successors([Successor(log, (), ("s",), origin=ORIGIN)])
                found = plane.describe_logs([log])[log]

        assert (born[log].origin, found.origin, found.state) == (None, None, LogState.OPEN)

    def test_of_two_that_create_a_topic_at_once_both_learn_who_did(
        self, here: PulsarTopic, plane: PulsarDataPlane
    ) -> None:
        """The broker answers both as if each had created the topic."""
        logs = [plane.backing_topic(here.topic, f"0000-ffff-{number}") for number in range(20)]
        both = Barrier(2)

        def create(log: str, token: str) -> LogOrigin | None:
            both.wait(30.0)
            wanted = Successor(log, (), (), origin=LogOrigin(token, 1, (), ()))
            return plane.create_successors([wanted])[log].origin

        with ThreadPoolExecutor(2) as pool:
            for log in logs:
                told = [pool.submit(create, log, token) for token in ("one", "other")]
                assert {one.result() for one in told} == {plane.describe_logs([log])[log].origin}


LOG = "persistent://t/n/x-segment-0000-ffff-0"
INTERNAL = {
    "state": "Terminated",
    "lastConfirmedEntry": "5:-1",
    "numberOfEntries": 0,
    "entriesAddedCounter": 0,
    "ledgers": [],
    "cursors": {},
}
READ = LogReport(LogState.TERMINATED, ORIGIN, False, {})


class TestAnswers:
    @pytest.fixture
    def plane(self, broker: ScriptedBroker) -> Iterator[PulsarDataPlane]:
        with closing(PulsarDataPlane(PulsarAccess(admin_url=broker.url), call_timeout_seconds=5.0)) as plane:
            yield plane

    def whole(self, broker: ScriptedBroker) -> dict[str, Behaviour]:
        """The answers of a broker, by the end of their paths; the three requests come in any order."""
        return {
            "internalStats": broker.says(200, INTERNAL),
            "stats": broker.says(200, {"subscriptions": {}}),
            "properties": broker.says(200, ORIGIN.to_properties()),
        }

    def answers(self, broker: ScriptedBroker, by_path: dict[str, Behaviour]) -> None:
        """Give these answers from now on."""

        def act(conversation: Conversation) -> None:
            by_path[conversation.path.partition("?")[0].rpartition("/")[2]](conversation)

        broker.behaves(act)

    def test_a_report_is_made_of_three_answers(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        self.answers(broker, self.whole(broker))

        assert plane.describe_logs([LOG]) == {LOG: READ}
        assert len(broker.received) == 3

    def test_backlogs_are_counted_by_the_broker(self, broker: ScriptedBroker, plane: PulsarDataPlane) -> None:
        """Without being asked for it, a broker tells an estimate."""
        self.answers(broker, self.whole(broker))

        plane.describe_logs([LOG])

        assert f"/admin/v2/{LOG.replace('://', '/')}/stats?getPreciseBacklog=true" in {
            one.path for one in broker.received
        }

    @pytest.mark.parametrize("missing", ["internalStats", "stats", "properties"])
    def test_a_log_with_an_answer_missing_is_left_out(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, missing: str
    ) -> None:
        self.answers(broker, {**self.whole(broker), missing: broker.refuses(503, "not now")})

        assert plane.describe_logs([LOG]) == {}

    @pytest.mark.parametrize("unreadable", ["internalStats", "stats", "properties"])
    def test_a_log_with_an_answer_that_cannot_be_read_is_left_out(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, unreadable: str
    ) -> None:
        self.answers(broker, {**self.whole(broker), unreadable: broker.says(200, ["of another program"])})

        assert plane.describe_logs([LOG]) == {}

    @pytest.mark.parametrize("gone", ["internalStats", "stats"])
    def test_a_log_that_is_deleted_meanwhile_is_missing(
        self, broker: ScriptedBroker, plane: PulsarDataPlane, gone: str
    ) -> None:
        self.answers(broker, {**self.whole(broker), gone: broker.refuses(404, "Topic not found")})

        assert plane.describe_logs([LOG])[LOG].state is LogState.MISSING

    def test_a_log_whose_properties_are_not_found_has_no_origin(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        self.answers(broker, {**self.whole(broker), "properties": broker.refuses(404, "not found")})

        assert plane.describe_logs([LOG]) == {LOG: LogReport(LogState.TERMINATED, None, False, {})}

    def test_a_creation_writes_the_origin_and_asks_a_new_log_for_its_properties_alone(
        self, broker: ScriptedBroker, plane: PulsarDataPlane
    ) -> None:
        made = {LOG.rpartition("/")[2]: broker.says(204), "s": broker.says(204)}
        self.answers(broker, {**self.whole(broker), **made})

        born = plane.create_successors([Successor(LOG, (), ("s",), origin=ORIGIN)])

        assert born[LOG].origin == ORIGIN
        first, *later = broker.received
        assert (first.method, json.loads(first.body)) == ("PUT", ORIGIN.to_properties())
        assert sorted(one.path.rpartition("/")[2] for one in later) == ["properties", "s"]
