"""What consumers of a queue rely on, on every data plane: each message is with one of them until that has settled it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from controller.dataplane.log_client import LogMessage, QueueReader
from controller.domain.errors import LostRace, SegmentNotFound, SubscriptionNotFound
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def take_all(count: int, *readers: QueueReader) -> list[list[LogMessage]]:
    """The next so many messages of all readers together, by reader."""
    found: list[list[LogMessage]] = [[] for _ in readers]

    def complete() -> bool:
        for mine, reader in zip(found, readers, strict=True):
            mine.extend(reader.read(2))
        return sum(map(len, found)) >= count

    wait_until(complete, message=f"{count} messages")
    return found


def acknowledge(reader: QueueReader, messages: Sequence[LogMessage]) -> None:
    assert list(reader.acknowledge([one.position for one in messages])) == []


def test_what_is_acknowledged_does_not_come_again_and_the_rest_does(planes: Planes) -> None:
    log = planes.log("s")
    for payload in (b"1", b"2", b"3"):
        planes.send(log, payload)
    reader = planes.queue(log, "s")
    found = planes.read(reader, 3)
    acknowledge(reader, [one for one in found if one.payload == b"2"])
    planes.settles_at(log, "s", 2)

    reader.close()

    assert sorted(payloads(planes.read(planes.queue(log, "s"), 2))) == [b"1", b"3"]


def test_readers_share_the_messages(planes: Planes) -> None:
    log = planes.log("s")
    readers = [planes.queue(log, "s", "a"), planes.queue(log, "s", "b")]
    for number in range(20):
        planes.send(log, b"%d" % number)

    shares = take_all(20, *readers)

    assert sorted(payloads([*shares[0], *shares[1]])) == sorted(b"%d" % number for number in range(20))
    for reader, share in zip(readers, shares, strict=True):
        acknowledge(reader, share)
    planes.settles_at(log, "s", 0)


def test_a_reader_that_joins_later_gets_what_comes_then(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    a = planes.queue(log, "s", "a")
    held = planes.read(a, 1)
    b = planes.queue(log, "s", "b")
    for number in range(2, 12):
        planes.send(log, b"%d" % number)

    shares = take_all(10, a, b)

    assert b"1" not in payloads([*shares[0], *shares[1]])
    acknowledge(a, held)


def test_what_is_given_back_comes_again_and_says_so(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    reader = planes.queue(log, "s")
    (first,) = planes.read(reader, 1)
    assert first.deliveries == 1

    reader.give_back([first.position])

    (second,) = planes.read(reader, 1)
    assert (second.payload, second.deliveries) == (b"1", 2)
    acknowledge(reader, [second])
    planes.settles_at(log, "s", 0)


def test_what_is_given_back_with_a_delay_keeps_nothing_else_waiting(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    reader = planes.queue(log, "s")
    (late,) = planes.read(reader, 1)

    reader.give_back([late.position], delay_seconds=1.0)
    planes.send(log, b"2")

    assert payloads(planes.read(reader, 2)) == [b"2", b"1"]


def test_one_of_a_batch_is_settled_by_itself(planes: Planes) -> None:
    """A broker gives out the whole batch again; what is in hand or settled is not delivered twice."""
    log = planes.filled_log(b"1", b"2", b"3")
    reader = planes.queue(log, "s")
    first, second, third = planes.read(reader, 3)
    acknowledge(reader, [first])

    reader.give_back([second.position])

    (again,) = planes.read(reader, 1)
    assert again.payload == b"2"
    acknowledge(reader, [third, again])
    planes.settles_at(log, "s", 0)
    assert list(reader.read(10)) == []


def test_what_is_given_back_takes_nothing_along_that_is_in_hand_or_settled(planes: Planes) -> None:
    """The other readers of the queue would do it a second time. A broker gives out the whole batch again, to any of them."""
    log = planes.log("s")
    planes.send(log, *(b"%d" % number for number in range(6)))
    reader = planes.queue(log, "s")
    *back, settled, last = planes.read(reader, 6)
    others = [planes.queue(log, "s", name) for name in "abc"]
    acknowledge(reader, [settled])
    again: list[LogMessage] = []
    for one in back:
        reader.give_back([one.position])
        found = take_all(1, reader, *others)
        for mine, whose in zip(found, (reader, *others), strict=True):
            acknowledge(whose, mine)
            again.extend(mine)

    assert payloads(again) == payloads(back)
    assert [one.deliveries for one in again] == [2] * len(back)
    acknowledge(reader, [last])
    planes.settles_at(log, "s", 0)
    assert not any(one.read(10) for one in (reader, *others))


def test_what_waits_behind_a_message_that_is_given_back_comes_once(planes: Planes) -> None:
    log = planes.filled_log(b"1", b"2", b"3", b"4")
    reader = planes.queue(log, "s")
    (first,) = planes.read(reader, 1)

    reader.give_back([first.position])
    found: list[LogMessage] = []

    def all_seen() -> bool:
        found.extend(reader.read(1))
        return len({one.payload for one in found}) == 4

    wait_until(all_seen, message="all four")
    assert sorted(payloads(found)) == [b"1", b"2", b"3", b"4"]
    acknowledge(reader, found)
    planes.settles_at(log, "s", 0)
    assert list(reader.read(10)) == []


def test_acknowledging_twice_is_acknowledging(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    reader = planes.queue(log, "s")
    found = planes.read(reader, 1)
    acknowledge(reader, found)

    acknowledge(reader, found)


def test_what_was_given_back_cannot_be_acknowledged_any_more(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    reader = planes.queue(log, "s")
    (message,) = planes.read(reader, 1)
    reader.give_back([message.position], delay_seconds=60.0)

    assert list(reader.acknowledge([message.position])) == [message.position]
    assert planes.plane.backlog(log, "s") == 1


def test_a_reader_with_a_bounded_read_gets_everything(planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, *(b"%d" % number for number in range(30)))
    reader = planes.queue(log, "s")
    found: list[bytes] = []

    for _ in range(30):
        (message,) = planes.read(reader, 1)
        acknowledge(reader, [message])
        found.append(message.payload)

    assert sorted(found) == sorted(b"%d" % number for number in range(30))
    planes.settles_at(log, "s", 0)


def test_a_log_is_drained_when_it_is_closed_and_everybody_has_settled(planes: Planes) -> None:
    log = planes.log("s")
    readers = [planes.queue(log, "s", "a"), planes.queue(log, "s", "b")]
    for number in range(10):
        planes.send(log, b"%d" % number)
    shares = take_all(10, *readers)
    planes.plane.terminate_segment(log)
    acknowledge(readers[0], shares[0][:-1])
    acknowledge(readers[1], shares[1])
    assert not any(reader.is_drained() for reader in readers) or not shares[0]

    acknowledge(readers[0], shares[0][-1:])

    wait_until(lambda: all(reader.is_drained() for reader in readers), message="drained")
    assert planes.plane.backlog(log, "s") == 0
    assert planes.queue(log, "s", "late").is_drained()


def test_a_move_gives_everything_out_again_and_refuses_what_was_in_hand(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    planes.send(log, b"2")
    reader = planes.queue(log, "s")
    found = planes.read(reader, 2)
    acknowledge(reader, found[:1])
    planes.settles_at(log, "s", 1)

    planes.plane.seek(log, "s", 0)

    def is_refused() -> bool:
        """The broker tells of the move by breaking the connection."""
        return [found[1].position] == list(reader.acknowledge([found[1].position])) or bool(reader.read(1))

    planes.ends(is_refused, LostRace)
    assert not reader.is_current
    assert sorted(payloads(planes.read(planes.queue(log, "s"), 2))) == [b"1", b"2"]


def test_skipping_settles_what_is_in_hand(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    reader = planes.queue(log, "s")
    planes.read(reader, 1)

    planes.plane.skip_all(log, "s")
    planes.send(log, b"2")

    planes.ends(lambda: reader.read(1), LostRace)
    assert payloads(planes.read(planes.queue(log, "s"), 1)) == [b"2"]


def test_arrivals_and_what_others_give_back_ring(planes: Planes) -> None:
    log = planes.log("s")
    rung = threading.Event()
    reader = planes.logs.open_queue_reader(log, "s", owner="r", on_arrival=rung.set)
    planes.readers.append(reader)
    rung.clear()
    planes.send(log, b"1")
    wait_until(rung.is_set, message="the callback for a message")
    (message,) = planes.read(reader, 1)
    rung.clear()

    reader.give_back([message.position])

    wait_until(rung.is_set, message="the callback for what was given back")


def test_subscriptions_do_not_disturb_each_other(planes: Planes) -> None:
    log = planes.log("q", "s")
    planes.send(log, b"1")
    reader = planes.queue(log, "q")
    acknowledge(reader, planes.read(reader, 1))
    planes.settles_at(log, "q", 0)

    assert planes.plane.backlog(log, "s") == 1
    assert planes.drain(log, "s") == [b"1"]


def test_reading_what_is_not_there_is_refused(planes: Planes) -> None:
    with pytest.raises(SegmentNotFound):
        planes.queue(planes.plane.backing_topic(planes.topic(), "0000-ffff-0"), "s")
    with pytest.raises(SubscriptionNotFound):
        planes.queue(planes.log("s"), "other")
