"""Sessions over real HTTP, against a real worker and PostgreSQL: what a consumer is told, and what it may not do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY, Mock, call
from urllib.parse import urlsplit

import httpx
import pytest

from controller.client.servers import Servers
from controller.client.session import OwnedBucket, Session
from controller.devstack.serving import SECRET, ServingWorker, client_of, serving_worker
from controller.domain.errors import (
    CleaveError,
    Conflict,
    FencedOut,
    InvalidInput,
    LostRace,
    NotFound,
    StoreUnavailable,
    Terminal,
)
from controller.domain.seek_target import EARLIEST
from controller.services import subscription_admin
from controller.services.consumer_sessions import leader
from controller.services.consumer_sessions.requests import Deregister
from controller.services.consumer_sessions.settlement import Settlement
from controller.services.segment_admin import rebucketing, splitting
from controller.store.topics import drains, subscriptions
from controller.store.topics.subscriptions import SubscriptionKind
from controller.web import access
from tests.support.bench import TOPIC, Bench
from tests.support.relay import Relay
from tests.support.session_readers import EVERYTHING, Joining, Reader, owned, share
from tests.support.waiting import wait_until

SEGMENTS = 2


@pytest.fixture
def worker(bench: Bench) -> Iterator[ServingWorker]:
    """One worker that serves."""
    with serving_worker(bench.url) as running:
        yield running


@pytest.fixture
def servers(worker: ServingWorker) -> Iterator[Servers]:
    """A client of that worker."""
    servers = client_of(worker.address)
    yield servers
    servers.close()


def test_one_consumer_owns_everything(bench: Bench, servers: Servers) -> None:
    session = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
    wait_until(lambda: owned(session), message="an assignment")
    assert {segment for segment, _ in owned(session)} == {0, 1}
    session.close()


def test_a_second_consumer_gets_its_share_and_what_stays_is_not_disturbed(join: Joining) -> None:
    first = join("a")
    share(first)
    before = first.generations

    second = join("b")
    share(first, second)

    assert {segment for segment, _ in first.owned}.isdisjoint(segment for segment, _ in second.owned)
    assert all(first.generations[bucket] == before[bucket] for bucket in first.owned)
    assert all(second.generations[bucket] > before[bucket] for bucket in second.owned)
    second.session.close()
    share(first)


def test_a_bucket_changes_hands_only_when_its_owner_has_let_go(servers: Servers, join: Joining) -> None:
    holder = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
    wait_until(lambda: owned(holder) == EVERYTHING, message="all is a's")
    second = join("b")

    def asked() -> list[tuple[int, int]]:
        found = holder.assignment
        return [(one.segment_id, one.bucket.start) for one in found.buckets if one.release] if found else []

    wait_until(asked, message="a is asked")
    wait_until(lambda: second.session.assignment, message="b is told")
    assert second.owned == set()

    found = holder.assignment
    assert found is not None
    holder.report_released([one for one in found.buckets if one.release])
    wait_until(lambda: second.owned == EVERYTHING - owned(holder), message="b has its share")
    holder.close()


def test_a_release_of_an_older_ownership_releases_nothing(servers: Servers, join: Joining) -> None:
    first = join("a")
    share(first)
    before = first.generations

    def let_go(generation: int) -> None:
        """Of what the consumer reads at a generation that is not the present one."""
        buckets = [
            {"segment_id": s, "bucket_start": b, "generation": generation} for s, b in sorted(EVERYTHING)
        ]
        document = {"incarnation": first.session._incarnation, "buckets": buckets}
        servers.ask("POST", f"{PATH}/released", document=document)

    let_go(before[0, 0] - 1)
    let_go(before[0, 0] + 1)

    second = join("b")
    share(first, second)
    assert all(first.generations[bucket] == before[bucket] for bucket in first.owned)


def test_who_comes_back_within_grace_finds_all_as_it_was(bench: Bench, join: Joining) -> None:
    first, second = join("a"), join("b")
    share(first, second)
    before, others = first.generations, second.generations

    first.session.close(leave=False)
    again = join("a")
    wait_until(lambda: again.generations == before, message="a has what it had, at the same generations")

    assert second.generations == others


def test_who_does_not_come_back_loses_its_share_after_grace(bench: Bench, join: Joining) -> None:
    first, second = join("a"), join("b")
    share(first, second)
    first.session.close(leave=False)
    assert len(second.owned) == 2

    share(second)

    with bench.store.transaction() as tx:
        assert tx.exec_driver_sql("SELECT name FROM cleave.consumer").scalars().all() == ["b"]
        reasons = tx.exec_driver_sql("SELECT name, reason FROM cleave.departed_consumer").all()
    assert [tuple(row) for row in reasons] == [("a", "expired")]


PATH = "/api/v1/topics/acme/shop/orders/subscriptions/billing/consumers/a"


def test_what_a_departed_life_still_says_is_refused(bench: Bench, servers: Servers) -> None:
    """Close during a register, two registers at once, replies late: no row is left, and none is taken from the living."""
    servers.ask("DELETE", PATH, query={"incarnation": "1"})
    with pytest.raises(FencedOut, match="has left"):
        servers.ask("POST", PATH, document={"incarnation": "1"})
    servers.ask("POST", PATH, document={"incarnation": "2"})
    servers.ask("POST", PATH, document={"incarnation": "3"})
    with pytest.raises(FencedOut, match="replaced"):
        servers.ask("POST", PATH, document={"incarnation": "2"})
    servers.ask("DELETE", PATH, query={"incarnation": "2"})

    with bench.store.transaction() as tx:
        rows = tx.exec_driver_sql("SELECT name, incarnation FROM cleave.consumer").all()
    assert [tuple(row) for row in rows] == [("a", "3")]


def test_a_newer_process_of_the_same_name_replaces_the_older_for_good(
    servers: Servers, join: Joining
) -> None:
    older = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
    wait_until(lambda: owned(older), message="the older is told")
    newer = join("a")
    share(newer)

    def is_over() -> bool:
        try:
            older.demand_alive()
        except FencedOut:
            return True
        return False

    wait_until(is_over, message="the older knows")
    assert not older.is_current
    older.close()
    assert newer.owned == EVERYTHING


def test_a_leader_whose_lease_has_passed_on_writes_nothing(
    bench: Bench, servers: Servers, join: Joining
) -> None:
    first = join("a")
    share(first)
    with bench.store.transaction() as tx:
        tx.exec_driver_sql(
            "UPDATE cleave.lease SET term = term + 1, holder = 'another' WHERE starts_with(name, 'shard/')"
        )

    with pytest.raises(StoreUnavailable):
        servers.ask("POST", f"{PATH[:-1]}late", document={"incarnation": "1"})

    with bench.store.transaction() as tx:
        assert tx.exec_driver_sql("SELECT name FROM cleave.consumer").scalars().all() == ["a"]
    first.session.close(leave=False)


def test_a_goodbye_that_cannot_be_written_ends_the_session_when_grace_is_over(
    bench: Bench, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream is still open, and nobody says it again (apache/pulsar#26433)."""
    session = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
    wait_until(lambda: owned(session) == EVERYTHING, message="all is a's")
    life, settle, failed = session._incarnation, leader.settle, threading.Event()

    def failing(tx: Any, key: Any, requests: Any, *rest: Any, **options: Any) -> Settlement:
        if not failed.is_set() and any(isinstance(one, Deregister) for one in requests):
            failed.set()
            raise LostRace("injected: the write fails", 0.1)
        return settle(tx, key, requests, *rest, **options)

    monkeypatch.setattr(leader, "settle", failing)
    with pytest.raises(LostRace, match="the write fails"):
        servers.ask("DELETE", PATH, query={"incarnation": life})

    wait_until(
        lambda: bench.rows("SELECT incarnation, reason FROM cleave.departed_consumer") == [(life, "expired")],
        message="the grace period ends it",
    )
    session.close()


def test_a_stream_that_has_gone_mute_is_left(worker: ServingWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is open, and nothing comes over it any more."""
    there = urlsplit(worker.address)
    with Relay(there.hostname or "", there.port or 0) as relay:
        servers = client_of(f"http://127.0.0.1:{relay.port}")
        asked = Mock(wraps=servers.ask)
        monkeypatch.setattr(servers, "ask", asked)
        session = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
        wait_until(lambda: owned(session) == EVERYTHING and session.is_current, message="all is a's")

        relay.stall()
        before = relay.connections
        asked.reset_mock()
        wait_until(lambda: not session.is_current, message="it stops by its own clock")
        wait_until(lambda: relay.connections > before, message="it tries another connection")
        anew = call("POST", PATH, document=ANY)
        wait_until(lambda: anew in asked.call_args_list, message="it leaves the stream and registers anew")

        relay.resume()
        wait_until(lambda: session.is_current, message="it is heard again")
        session.close()
        servers.close()


@pytest.mark.parametrize(
    ("topics", "path", "document", "error", "words"),
    [
        (("topic://acme/shop/*",), PATH, {"incarnation": ""}, InvalidInput, "incarnation"),
        (("topic://acme/shop/*",), PATH, {}, InvalidInput, "incarnation"),
        (("topic://*",), PATH, {"incarnation": "a\0b"}, InvalidInput, "incarnation"),
        (("topic://*",), f"{PATH}%00", {"incarnation": "1"}, InvalidInput, "consumer"),
        (("topic://*",), f"{PATH}%20b", {"incarnation": "1"}, InvalidInput, "consumer = 'a b' is no name"),
        (("topic://*",), f"{PATH}%2Fb", {"incarnation": "1"}, InvalidInput, "have no slash"),
        (
            ("topic://acme/other/*",),
            PATH,
            {"incarnation": "1"},
            Terminal,
            "does not include topic://acme/shop/orders",
        ),
        (("topic://*",), PATH.replace("billing", "nothing"), {"incarnation": "1"}, NotFound, "nothing"),
        (("topic://*",), PATH.replace("orders", "nothing"), {"incarnation": "1"}, NotFound, "does not exist"),
        (("topic://*",), f"{PATH}/pulse", {"incarnation": "1"}, LostRace, "register again"),
        (
            ("topic://*",),
            f"{PATH}/drained",
            {"incarnation": "1", "segments": [{"segment_id": 0, "generation": 1}]},
            LostRace,
            "register",
        ),
    ],
)
def test_bad_input_is_refused_with_its_reason(
    worker: ServingWorker,
    topics: tuple[str, ...],
    path: str,
    document: dict[str, object],
    error: type[CleaveError],
    words: str,
) -> None:
    servers = client_of(worker.address, topics=topics)
    with pytest.raises(error, match=words):
        servers.ask("POST", path, document=document)
    servers.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", f"{PATH}%2Fb", 400, "InvalidInput"),
        ("POST", f"{PATH}%20b", 400, "InvalidInput"),
        ("GET", "/api/v1/topics/acme/shop/or%20ders/layout", 400, "InvalidInput"),
        ("GET", "/nothing/here", 404, "NotFound"),
        ("PUT", PATH, 405, "InvalidInput"),
    ],
)
def test_what_is_no_call_is_refused_with_a_reason(
    worker: ServingWorker, method: str, path: str, status: int, kind: str
) -> None:
    headers = {"Authorization": f"Bearer {access.sign(SECRET, ['topic://*'], 60.0)}"}
    answer = httpx.request(
        method,
        f"{worker.address}{path}",
        headers=headers,
        json={"incarnation": "1"} if method != "GET" else None,
    )
    assert (answer.status_code, answer.json()["kind"]) == (status, kind)
    assert answer.json()["reason"]


def test_without_a_valid_token_nothing_is_said(worker: ServingWorker) -> None:
    expired = access.sign(SECRET, ["topic://*"], -120.0)
    foreign = access.sign("x" * 32, ["topic://*"], 60.0)
    for token in ("x", "nonsense", expired, foreign):
        answer = httpx.get(
            f"{worker.address}/api/v1/topics/acme/shop/orders/layout",
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status_code == 401
        assert "token" in answer.json()["reason"]


def test_another_worker_sends_consumers_to_the_leader(bench: Bench, worker: ServingWorker) -> None:
    with serving_worker(bench.url) as other:
        addresses = [worker.address, other.address]
        wait_until(
            lambda: bool(worker.worker.leases.terms) and bool(other.worker.leases.terms),
            timeout_seconds=20,
            message="both have shards",
        )
        for address in addresses:
            servers = client_of(address)
            reader = Reader(servers, "a")
            share(reader)
            reader.session.close()
            servers.close()


def test_what_nobody_owns_cannot_be_drained(bench: Bench, servers: Servers, join: Joining) -> None:
    first = join("a")
    share(first)
    servers.ask("POST", PATH, document={"incarnation": first.session._incarnation})
    owned_since = first.generations[0, 0]
    for segment_id, generation, words in (
        (0, owned_since, "not sealed"),
        (77, owned_since, "does not own segment 77"),
        (0, owned_since - 1, "does not own segment 0 since generation"),
    ):
        read = {"segment_id": segment_id, "generation": generation}
        with pytest.raises(Conflict, match=words):
            servers.ask(
                "POST",
                f"{PATH}/drained",
                document={"incarnation": first.session._incarnation, "segments": [read]},
            )


def test_what_the_leader_writes_itself_is_settled_once(
    bench: Bench, servers: Servers, join: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own notifications come back to it, and tell it nothing. A paused topic is not evaluated, so no move waits for a decision."""
    bench.execute("UPDATE cleave.evaluation SET not_before = 'infinity'")
    session = Session(servers, TOPIC, "billing", "a", on_change=lambda: None)
    wait_until(lambda: owned(session) == EVERYTHING, message="all is a's")
    bench.reshape(splitting(0))
    wait_until(lambda: any(one.sealed for one in held(session)), message="the split is told of")
    asked: list[list[str]] = []
    settle = leader.settle

    def noted(tx: Any, key: Any, requests: Any, *rest: Any, **options: Any) -> Settlement:
        asked.append([type(request).__name__ for request in requests])
        return settle(tx, key, requests, *rest, **options)

    monkeypatch.setattr(leader, "settle", noted)
    session.report_drained([one for one in held(session) if one.sealed])
    wait_until(
        lambda: {2, 3} <= {one.segment_id for one in held(session)}, message="the children are delivered"
    )
    second = join("b")
    wait_until(lambda: second.session.assignment, message="b is told")

    assert asked[0] == ["Drained"]
    assert ["Register"] in asked
    assert [] not in asked
    session.close()


def held(session: Session) -> tuple[OwnedBucket, ...]:
    """What it was told last."""
    return session.assignment.buckets if session.assignment else ()


def test_what_was_read_before_a_seek_is_not_drained_by_a_word_that_comes_late(
    bench: Bench, servers: Servers, join: Joining
) -> None:
    first = join("a")
    share(first)
    before = first.generations[0, 0]
    bench.publish(0)
    bench.reshape(splitting(0))
    seek = subscription_admin.seek_subscription(
        bench.store, TOPIC, "billing", EARLIEST, bench.request(), release_seconds=60.0
    )
    bench.finish(seek)
    wait_until(lambda: first.generations.get((0, 0), 0) > before, message="it is a's again")

    with pytest.raises(Conflict, match="does not own segment 0 since generation"):
        servers.ask(
            "POST",
            f"{PATH}/drained",
            document={
                "incarnation": first.session._incarnation,
                "segments": [{"segment_id": 0, "generation": before}],
            },
        )


def test_a_queue_is_not_shared_out(bench: Bench, servers: Servers) -> None:
    queue = subscription_admin.create_subscription(
        bench.store, TOPIC, "jobs", bench.request(), kind=SubscriptionKind.QUEUE
    )
    bench.finish(queue)

    with pytest.raises(Conflict, match="recorded as QUEUE"):
        servers.ask("POST", PATH.replace("billing", "jobs"), document={"incarnation": "1"})

    assert bench.scalar("SELECT count(*) FROM cleave.consumer") == 0


def test_a_sealed_segment_is_drained_by_several_and_read_by_one_when_it_is_clear(
    bench: Bench, join: Joining
) -> None:
    bench.publish(0)
    bench.reshape(rebucketing(0, 8))
    first, second = join("a"), join("b")

    def shares() -> list[list[int]]:
        """How many buckets of which segment each of the two has, by segment."""
        return [[sum(s == segment for s, _ in one.owned) for segment in (0, 1, 2)] for one in (first, second)]

    wait_until(lambda: sorted(shares()) == [[0, 2, 0], [2, 0, 0]], message="whole segments")

    with bench.store.transaction() as tx:
        subscriptions.set_sharing(tx, bench.topic_id, "billing", parents_block=None, drain_consumers=4)
    wait_until(lambda: sorted(shares()) == [[1, 0, 0], [1, 2, 0]], message="both drain it")

    with bench.store.transaction() as tx:
        drains.mark_drained(tx, bench.topic_id, "billing", [0])
    wait_until(lambda: sorted(shares()) == [[0, 0, 8], [0, 2, 0]], message="one reads its successor")
    with pytest.raises(InvalidInput, match="1 to 65536"), bench.store.transaction() as tx:
        subscriptions.set_sharing(tx, bench.topic_id, "billing", parents_block=None, drain_consumers=0)
