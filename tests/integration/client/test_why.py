"""Why nothing comes of a bucket: what its owner knows, the leader says to others, and SQL shows, each with since when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import pytest

from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.client.stream_consumer import BucketStatus, StreamConsumer
from controller.devstack.serving import client_of, serving_leader
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.faulty_logs import FaultyLogs
from tests.support.joined import joining
from tests.support.waiting import wait_until

SHOWN = "SELECT DISTINCT owner, reason FROM inspect.buckets ORDER BY reason"
Join = Callable[[str], StreamConsumer]


@pytest.fixture
def servers(bench: Bench) -> Iterator[Servers]:
    """A client of the leader of a topic with one segment, which sends a heartbeat three times a second."""
    bench.topic_with(segments=1)
    with serving_leader(bench.url) as address:
        servers = client_of(address)
        yield servers
        servers.close()


@pytest.fixture
def join(servers: Servers, logs: FaultyLogs) -> Iterator[Join]:
    """Consumers of subscription `billing`, signed off at the end."""
    with joining(partial(StreamConsumer, servers, logs, TOPIC, "billing")) as join:
        yield join


def reasons(consumer: StreamConsumer) -> set[tuple[str, tuple[str, ...]]]:
    """What it is told of each bucket."""
    return {(one.reason, one.holders) for one in consumer.why()}


def reads(consumer: StreamConsumer, buckets: int) -> None:
    """Until it has so many of the topic's four buckets."""
    wait_until(lambda: consumer.receive(0.02) is None and len(consumer.buckets) == buckets)


def test_what_an_owner_knows_everybody_is_told(bench: Bench, join: Join) -> None:
    a = join("a")
    reads(a, 4)
    wait_until(lambda: a.receive(0.1) is None and bench.rows(SHOWN) == [("a", "no data")])
    began = bench.scalar("SELECT clock_timestamp()")
    a.pause()

    wait_until(lambda: bench.rows(SHOWN) == [("a", "paused")], message="the leader is told")

    assert bench.scalar("SELECT min(since) FROM inspect.buckets") >= began
    assert bench.scalar("SELECT count(*) FROM inspect.bucket_gaps") == 0
    assert {datetime.fromisoformat(one.since or "") >= began for one in a.why()} == {True}
    a.resume()
    wait_until(lambda: a.receive(0.1) is None and bench.rows(SHOWN) == [("a", "no data")])


def test_a_consumer_that_does_not_receive_says_no_more_than_that(
    bench: Bench, servers: Servers, join: Join
) -> None:
    """Whether there is something to read it does not know; everything may be acknowledged."""
    a = join("a")
    with Producer(HttpSource(servers), bench.logs, TOPIC) as producer:
        producer.send(b"1", "key-1")
    batch = wait_until(lambda: a.receive(0.1))
    assert a.acknowledge(batch)

    assert "waits for the next `receive`" in {one.reason for one in a.why()}
    assert {one.messages for one in a.lag()} == {0}


def test_a_reason_lasts_from_when_it_began(bench: Bench, join: Join) -> None:
    a = join("a")
    reads(a, 4)
    wait_until(lambda: a.receive(0.1) is None and reasons(a) == {("no data", ())})
    first = {one.since for one in a.why()}
    later = datetime.now(UTC)
    wait_until(lambda: a.receive(1.1) is None and bench.rows(SHOWN) == [("a", "no data")])

    assert all(datetime.fromisoformat(one.since or "") < later for one in a.why())
    assert len(first) <= 4


def test_a_claim_that_cannot_succeed_is_told_of_and_is_a_gap(
    bench: Bench, logs: FaultyLogs, join: Join
) -> None:
    """It was silent for good: the leader said that the bucket is owned."""
    logs.held.add(bench.log_of(0))
    a = join("a")
    assert a.receive(0.1) is None

    wait_until(
        lambda: bench.scalar("SELECT count(*) FROM inspect.bucket_gaps WHERE holder = 'a'") == 4,
        message="each bucket is a gap",
    )

    [(owner, reason)] = bench.rows(SHOWN)
    assert (owner, reason) == ("a", f"held by another reader: injected: reader x has {bench.log_of(0)}")
    assert {one.reason for one in a.why()} == {reason}


def test_what_is_out_of_reach_for_its_owner_is_told_to_others(
    bench: Bench, logs: FaultyLogs, join: Join
) -> None:
    logs.out_of_reach.add(bench.log_of(0))
    a, b = join("a"), join("b")
    told = f"out of reach: injected: {bench.log_of(0)} is out of reach"

    def known() -> bool:
        return (told, ("a",)) in reasons(b) and (told, ("b",)) in reasons(a)

    wait_until(known, message="each is told of the other's")
    assert bench.rows("SELECT DISTINCT reason FROM inspect.bucket_gaps") == [(told,)]


def test_what_a_life_before_said_is_not_said_of_the_next(bench: Bench, join: Join) -> None:
    a = join("a")
    reads(a, 4)
    a.pause()
    wait_until(lambda: bench.rows(SHOWN) == [("a", "paused")])
    a.close(leave=False)

    again = join("a")

    assert bench.rows(SHOWN) == [("a", "owned")]
    reads(again, 4)


def test_others_are_told_that_an_owner_is_not_connected(bench: Bench, join: Join) -> None:
    """Whatever it said before it went: that is not why nothing comes of its buckets."""
    a, b = join("a"), join("b")
    wait_until(lambda: not (a.receive(0.02) or b.receive(0.02)) and len(a.buckets) == len(b.buckets) == 2)
    a.pause()
    wait_until(lambda: ("paused", ("a",)) in reasons(b))
    began = bench.scalar("SELECT clock_timestamp()")
    a.close(leave=False)

    told = "owner is not connected: it may come back until its grace period is over"
    wait_until(lambda: (told, ("a",)) in reasons(b), message="b is told")

    [since] = {one.since for one in b.why() if one.reason == told}
    assert datetime.fromisoformat(since or "") == bench.scalar(
        "SELECT disconnected_at FROM cleave.consumer WHERE name = 'a'"
    )
    assert datetime.fromisoformat(since or "") >= began


def test_children_name_what_they_wait_for(bench: Bench, join: Join) -> None:
    a = join("a")
    reads(a, 4)
    bench.publish(0)
    batch = wait_until(lambda: a.receive(0.1), message="a batch")
    bench.reshape(splitting(0))

    def of_children() -> list[BucketStatus]:
        return [one for one in a.why() if one.segment_id != 0]

    wait_until(of_children, message="the children")
    assert {(one.holders, one.waits_for, one.backlog) for one in of_children()} == {(("a",), (0,), 3)}
    assert a.acknowledge(batch)
