"""Several consumers in one segment, a bucket or more for each: on real logs, told by a real leader."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller.client.producer import Producer
from controller.client.session import Session
from controller.client.stream_consumer import Batch, StreamConsumer
from controller.domain.entry_buckets import bucket_of, bucket_ranges
from controller.domain.hash_range import HashRange
from controller.domain.key_hash import key_hash
from controller.services.segment_admin import rebucketing, splitting
from controller.store.topics import subscriptions
from tests.support.bench import TOPIC, Bench
from tests.support.joined import Join, send_numbers, settle, take
from tests.support.waiting import wait_until

KEYS = [f"key-{i}" for i in range(40)]
OWNERS = "SELECT jsonb_agg(to_jsonb(o) ORDER BY segment_id, bucket_start) FROM cleave.bucket_owner o"


send = partial(send_numbers, keys=KEYS)


def share(*consumers: StreamConsumer, counts: tuple[int, ...]) -> None:
    """Let the consumers do their part until each reads so many buckets; nothing may be delivered meanwhile."""
    settle(*consumers, until=lambda: sorted(len(one.buckets) for one in consumers) == sorted(counts))


def owner_of(key: str, *consumers: StreamConsumer) -> str:
    """Who reads the key now."""
    place = key_hash(key).bucket_hash
    [name] = [one.name for one in consumers for _, bucket in one.buckets if bucket.contains(place)]
    return name


def figure(name: str) -> float:
    """A metric of this process, in which the leader runs too."""
    return REGISTRY.get_sample_value(name) or 0.0


def test_what_the_leader_and_the_producer_count_is_what_happens(
    bench: Bench, producer: Producer, join: Join
) -> None:
    """Sessions with their names in the log, buckets that change hands, segments that are shared or drained, batches."""
    before = {
        name: figure(name)
        for name in (
            "cleave_buckets_granted_total",
            "cleave_producer_batches_total",
            "cleave_producer_messages_total",
        )
    }

    def grown(name: str) -> float:
        return figure(name) - before[name]

    with capture_logs() as lines:
        a = join("a")
        share(a, counts=(4,))
        assert grown("cleave_buckets_granted_total") == 4
        wait_until(lambda: figure("cleave_buckets_owned") == 4, message="it is measured")
        assert figure("cleave_shared_segments") == 0
        b = join("b")
        share(a, b, counts=(2, 2))
        assert grown("cleave_buckets_granted_total") == 6
        wait_until(lambda: figure("cleave_shared_segments") == 1, message="it is measured")
        assert figure("cleave_draining_segments") == 0

        send(producer, 0)
        assert grown("cleave_producer_messages_total") == len(KEYS)
        assert grown("cleave_producer_batches_total") == 1, "the logs take all buckets of a segment at once"
        bench.reshape(splitting(0))
        wait_until(lambda: figure("cleave_draining_segments") == 1, message="the sealed one is read")
        take(a, b, count=len(KEYS))
        wait_until(
            lambda: (
                (a.receive(0.02), b.receive(0.02)) == (None, None) and not figure("cleave_draining_segments")
            ),
            message="it is read to its end",
        )
        b.close()
        wait_until(lambda: [one for one in lines if one["event"] == "session ended"], message="b has left")

    told = [
        (one["event"], one["topic"], one["subscription"], one["consumer"], one.get("reason"))
        for one in lines
        if one["event"].startswith("session")
    ]
    assert told == [
        ("session begun", TOPIC, "billing", "a", None),
        ("session begun", TOPIC, "billing", "b", None),
        ("session ended", TOPIC, "billing", "b", "left"),
    ]


def test_newcomers_share_the_one_segment_at_once_and_each_key_keeps_its_order(
    producer: Producer, join: Join
) -> None:
    a = join("a")
    share(a, counts=(4,))
    send(producer, 0)
    assert set(take(a, count=len(KEYS))) == set(KEYS)

    b, c = join("b"), join("c")
    share(a, b, c, counts=(2, 1, 1))
    send(producer, 1, 2)
    found = take(a, b, c, count=2 * len(KEYS))

    for key in KEYS:
        owner = owner_of(key, a, b, c)
        assert found[key] == [(owner, 1), (owner, 2)]
    assert {name for flow in found.values() for name, _ in flow} == {"a", "b", "c"}


def test_no_acknowledgement_is_refused_in_a_storm_of_joins(producer: Producer, join: Join) -> None:
    """An epoch for the whole of an assignment refuses those that race with a join (apache/kafka#21508)."""
    consumers = [join("a")]
    found: dict[str, list[int]] = {}
    for number in range(6):
        send(producer, number)
        consumers.append(join(f"c{number}"))  # while the others have messages in hand
        for key, flow in take(*consumers, count=len(KEYS)).items():  # which demands every acknowledgement
            found.setdefault(key, []).extend(one for _, one in flow)

    assert found == {key: list(range(6)) for key in KEYS}


def test_only_the_bucket_that_moves_waits_for_what_is_in_hand(producer: Producer, join: Join) -> None:
    told: list[tuple[int, HashRange]] = []
    a = join("a", on_release=lambda segment_id, bucket: told.append((segment_id, bucket)))
    share(a, counts=(4,))
    send(producer, 0)
    in_hand: dict[HashRange, Batch] = {}

    def all_handed_out() -> bool:
        batch = a.receive(0.1)
        if batch is not None:
            in_hand[batch.bucket] = batch
        return len(in_hand) == 4

    wait_until(all_handed_out, message="a batch of each bucket")
    b = join("b")
    share(a, b, counts=(2, 0))  # two are to be let go of, and wait for the application
    assert told == []
    kept = {bucket for _, bucket in a.buckets}
    moving = set(in_hand) - kept

    for bucket in kept:
        assert a.acknowledge(in_hand[bucket])
    send(producer, 1)
    ahead = [batch.bucket for batch in iter(lambda: a.receive(0.2), None)]
    assert set(ahead) == kept
    assert b.receive(0.1) is None

    for bucket in moving:
        assert a.acknowledge(in_hand[bucket])
    assert {bucket for _, bucket in told} == moving
    found = take(b, count=sum(any(m.contains(key_hash(key).bucket_hash) for m in moving) for key in KEYS))
    assert all(flow == [("b", 1)] for flow in found.values())


def test_who_leaves_gives_its_buckets_back_and_what_it_had_in_hand_comes_again(
    producer: Producer, join: Join
) -> None:
    a, b = join("a"), join("b")
    share(a, b, counts=(2, 2))
    send(producer, 0)
    batch = wait_until(lambda: b.receive(0.1), message="something for b")
    own = {m.key.decode() for m in batch.messages if m.key}
    b.close()

    found = take(a, count=len(KEYS))
    assert own <= set(found)
    assert all(flow == [("a", 0)] for flow in found.values())


def test_a_sealed_backlog_is_read_by_as_many_as_it_has_buckets_and_the_children_wait(
    bench: Bench, producer: Producer, join: Join
) -> None:
    send(producer, 0)
    bench.reshape(splitting(0))
    send(producer, 1)
    consumers = [join(name) for name in "abcd"]
    wait_until(  # nobody has read of it
        lambda: all(0 in one.segment_ids for one in consumers), message="each has a part of it"
    )

    found = take(*consumers, count=2 * len(KEYS))

    assert {name for flow in found.values() for name, number in flow if number == 0} == set("abcd")
    assert all([number for _, number in flow] == [0, 1] for flow in found.values())
    assert bench.scalar("SELECT array_agg(segment_id) FROM cleave.segment_drain") == [0]


def test_after_a_rebucket_all_five_receive(bench: Bench, producer: Producer, join: Join) -> None:
    """Pulsar's own: three of five sat on the drained parent (apache/pulsar#26434)."""
    consumers = [join(name) for name in "abcde"]
    share(*consumers, counts=(1, 1, 1, 1, 0))
    bench.reshape(rebucketing(0, 8))
    share(*consumers, counts=(2, 2, 2, 1, 1))

    send(producer, 0)
    found = take(*consumers, count=len(KEYS))

    buckets = {owner_of(key, *consumers) for key in KEYS}
    splits = bench.layout.active[0].bucket_splits
    assert (
        len({bucket_of(splits, key_hash(key).bucket_hash) for key in KEYS}) == len(bucket_ranges(splits)) == 8
    )
    assert {name for flow in found.values() for name, _ in flow} == buckets == set("abcde")


def test_a_consumer_that_comes_back_under_its_name_disturbs_nobody(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a, b = join("a"), join("b")
    share(a, b, counts=(2, 2))
    before = bench.scalar(OWNERS)
    a.close(leave=False)
    send(producer, 0)
    again = join("a")

    assert set(take(again, b, count=len(KEYS))) == set(KEYS)
    assert bench.scalar(OWNERS) == before


def test_who_does_not_hear_its_leader_hands_out_and_acknowledges_nothing(
    producer: Producer, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = join("a")
    share(a, counts=(4,))
    send(producer, 0)
    in_hand = wait_until(lambda: a.receive(0.1), message="a batch")

    heard = iter([True])  # when it looks what there is to read, and no more when it has read
    with monkeypatch.context() as silence:
        silence.setattr(Session, "is_current", property(lambda _: next(heard, False)))
        assert a.receive(0.2) is None
        assert next(heard, None) is None
        assert not a.acknowledge(in_hand)

    assert {key for key, flow in take(a, count=len(KEYS)).items() if flow == [("a", 0)]} == set(KEYS)


def test_batches_may_be_acknowledged_in_any_order_and_the_bucket_still_changes_hands(
    producer: Producer, join: Join
) -> None:
    a = join("a", batch_messages=1)
    share(a, counts=(4,))
    send(producer, 0)
    batches = [wait_until(lambda: a.receive(0.1), message="a message") for _ in range(len(KEYS))]

    for batch in reversed(batches):
        assert a.acknowledge(batch)

    b = join("b")
    share(a, b, counts=(2, 2))


def test_what_is_given_back_comes_again_from_its_first_message_on(producer: Producer, join: Join) -> None:
    a = join("a")
    share(a, counts=(4,))
    send(producer, 0)
    a.give_back(wait_until(lambda: a.receive(0.1), message="a batch"))

    assert {key for key, flow in take(a, count=len(KEYS)).items() if flow == [("a", 0)]} == set(KEYS)


def test_what_a_busy_application_is_given_is_opened_meanwhile(producer: Producer, join: Join) -> None:
    """On a broker what nobody has attached stops the neighbours as well."""
    a, b = join("a"), join("b")
    share(a, b, counts=(2, 2))
    a.close()

    wait_until(lambda: len(b.buckets) == 4, message="all is attached, and nobody called `receive`")

    send(producer, 0)
    assert set(take(b, count=len(KEYS))) == set(KEYS)


def test_what_is_idle_changes_hands_while_the_application_is_busy(producer: Producer, join: Join) -> None:
    a = join("a", batch_messages=1)
    share(a, counts=(4,))
    key = KEYS[0]
    producer.send(b"0", key)
    producer.flush()
    in_hand = wait_until(lambda: a.receive(0.1), message="a message")
    b, c, d, e = (join(name) for name in "bcde")

    def moved() -> int:
        """Buckets that others read."""
        assert [one.receive(0.01) for one in (b, c, d, e)] == [None] * 4
        return sum(len(one.buckets) for one in (b, c, d, e))

    def is_asked() -> bool:
        return in_hand.bucket not in {bucket for _, bucket in a.buckets}

    wait_until(lambda: moved() == 3 - is_asked(), message="what is idle has gone")
    assert a.acknowledge(in_hand)
    wait_until(lambda: moved() == 3, message="each has one")


def test_the_application_is_told_in_its_own_thread_before_a_bucket_goes(
    producer: Producer, join: Join
) -> None:
    told: list[threading.Thread] = []
    a = join("a", on_release=lambda _segment_id, _bucket: told.append(threading.current_thread()))
    share(a, counts=(4,))
    b = join("b")
    wait_until(
        lambda: {one.reason for one in a.why()} >= {"being handed over"}, message="a is asked for some"
    )
    assert told == []
    share(a, b, counts=(2, 2))

    assert told == [threading.current_thread()] * 2


def test_it_can_always_be_asked_why_nothing_comes(bench: Bench, producer: Producer, join: Join) -> None:
    a = join("a")
    share(a, counts=(4,))
    # Each is read once when it is opened, and once a second.
    wait_until(lambda: a.receive(0.05) is None and {one.reason for one in a.why()} == {"no data"})
    send(producer, 0)
    in_hand: list[Batch] = []

    def all_in_hand() -> bool:
        batch = a.receive(0.1)
        if batch is not None:
            in_hand.append(batch)
        return len(in_hand) == 4

    wait_until(all_in_hand, message="a batch of each bucket")
    b = join("b")
    share(a, b, counts=(2, 0))
    bench.reshape(splitting(0))

    found = {(one.segment_id, one.bucket): one for one in b.why()}
    of_parent = [one for one in found.values() if one.segment_id == 0]
    assert sorted(one.reason for one in of_parent) == ["being handed over"] * 2 + ["owned by a"] * 2
    assert {one.holders for one in of_parent} == {("a",)}
    children = [one for one in found.values() if one.segment_id != 0]
    assert {(one.reason, one.holders) for one in children} == {
        ("withheld until its parents are drained", ("a",))
    }
    assert all(one.since is not None for one in found.values())
    own = {"no data beyond what is in hand", "being handed over once its delivered messages are acknowledged"}
    wait_until(
        lambda: a.receive(0.1) is None and {one.reason for one in a.why() if one.segment_id == 0} == own
    )


def set_sharing(bench: Bench, **how: Any) -> None:
    """How `billing` is shared out."""
    given = {"parents_block": None, "drain_consumers": None, **how}
    with bench.store.transaction() as tx:
        subscriptions.set_sharing(tx, bench.topic_id, "billing", **given)


def test_where_lag_matters_more_than_order_children_are_read_beside_their_parents(
    bench: Bench, producer: Producer, join: Join
) -> None:
    a = join("a")
    share(a, counts=(4,))
    send(producer, 0)
    in_hand = [wait_until(lambda: a.receive(0.1), message="a batch") for _ in range(4)]
    bench.reshape(splitting(0))
    send(producer, 1)
    share(a, counts=(4,))  # the children wait for what is in hand

    set_sharing(bench, parents_block=False)

    assert set(take(a, count=len(KEYS))) == set(KEYS)
    assert set(a.segment_ids) == {0, 1, 2}
    assert all(a.acknowledge(one) for one in in_hand)
