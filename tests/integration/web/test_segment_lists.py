"""Lists of segments for consumers without a session, and what a queue's consumers say of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.client import segment_lists
from controller.client.segment_lists import SegmentList, SegmentWatch
from controller.client.servers import Servers
from controller.devstack.serving import client_of, serving_leader
from controller.domain.errors import AccessForbidden, Conflict, LostRace, SubscriptionNotFound, TopicNotFound
from controller.services import subscription_admin
from controller.services.segment_admin import splitting
from controller.store.topics.subscriptions import SubscriptionKind
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A topic with a queue `jobs`."""
    bench.topic_with(segments=1)
    jobs = subscription_admin.create_subscription(
        bench.store, TOPIC, "jobs", bench.request(), kind=SubscriptionKind.QUEUE
    )
    bench.finish(jobs)
    return bench


@pytest.fixture
def address(bench: Bench) -> Iterator[str]:
    with serving_leader(bench.url, consumer_grace_seconds=60.0) as address:
        yield address


@pytest.fixture
def jobs(servers: Servers) -> Iterator[SegmentWatch]:
    watch = SegmentWatch(servers, TOPIC, queue="jobs", on_change=lambda: None)
    yield watch
    watch.close()


def test_a_queue_has_every_segment_until_it_is_drained(bench: Bench, jobs: SegmentWatch) -> None:
    assert set(jobs.current.segments) == {0}
    bench.reshape(splitting(0))
    found = wait_until(
        lambda: jobs.take() and len(jobs.current.segments) == 3 and jobs.current, message="the split"
    )
    assert {one.segment_id for one in found.segments.values() if one.is_sealed} == {0}

    jobs.report_drained([0], found.as_of)
    jobs.report_drained([0], found.as_of)

    assert set(jobs.ask().segments) == {1, 2}
    assert bench.scalar("SELECT subscription FROM cleave.segment_drain") == "jobs"


def test_what_is_said_after_a_seek_does_not_undo_it(bench: Bench, jobs: SegmentWatch) -> None:
    bench.reshape(splitting(0))
    for column in ("origin", "generation"):
        as_of = jobs.ask().as_of
        bench.execute(f"UPDATE cleave.subscription SET {column} = {column} + 1 WHERE name = 'jobs'")

        with pytest.raises(LostRace, match="moved"):
            jobs.report_drained([0], as_of)

    assert bench.scalar("SELECT count(*) FROM cleave.segment_drain") == 0


def test_a_segment_that_is_active_cannot_be_drained(jobs: SegmentWatch) -> None:
    with pytest.raises(Conflict, match="not sealed"):
        jobs.report_drained([0], jobs.current.as_of)


def test_a_subscription_has_one_kind(bench: Bench, servers: Servers, jobs: SegmentWatch) -> None:
    with pytest.raises(Conflict, match="recorded as STREAM"):
        SegmentWatch(servers, TOPIC, queue="billing", on_change=lambda: None)
    bench.execute("UPDATE cleave.subscription SET kind = 'STREAM' WHERE name = 'jobs'")
    with pytest.raises(Conflict, match="recorded as STREAM"):
        jobs.report_drained([0], jobs.current.as_of)


def test_what_is_not_there_is_told(servers: Servers) -> None:
    with pytest.raises(SubscriptionNotFound):
        SegmentWatch(servers, TOPIC, queue="nobody", on_change=lambda: None)
    with pytest.raises(TopicNotFound):
        SegmentWatch(servers, f"{TOPIC}-2", on_change=lambda: None)


def test_a_token_of_another_topic_opens_nothing(address: str) -> None:
    strange = client_of(address, topics=("topic://acme/shop/other",))

    for queue in (None, "jobs"):
        with pytest.raises(AccessForbidden):
            SegmentWatch(strange, TOPIC, queue=queue, on_change=lambda: None)
    strange.close()


def test_a_list_that_could_not_be_requested_is_requested_again_soon(
    jobs: SegmentWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token function of the application may raise anything."""
    monkeypatch.setattr(segment_lists, "LIST_SECONDS", 3600.0)
    monkeypatch.setattr(segment_lists, "LONGEST_RETRY_SECONDS", 0.0)
    requests: list[str] = []

    def failing_once() -> SegmentList:
        requests.append("list")
        if len(requests) == 1:
            raise RuntimeError("the vault is sealed")
        return jobs.current

    jobs._watch.close()  # no other change requests the list
    wait_until(lambda: not jobs._changed.is_set(), message="earlier requests")
    monkeypatch.setattr(jobs, "ask", failing_once)
    jobs.look_again()

    wait_until(lambda: len(requests) == 2, message="the second request")
