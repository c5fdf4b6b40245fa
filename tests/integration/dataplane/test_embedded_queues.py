"""What only the embedded logs do for queues and positions: readers that die, answers that are lost, bounds, trimming."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient, queue_reader
from controller.dataplane.embedded.queue_reader import EmbeddedQueueReader
from controller.domain.errors import DataGone, LostRace
from controller.domain.hash_range import HashRange
from tests.integration.dataplane.test_embedded import query
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@contextmanager
def unkept(database: str, life_seconds: float) -> Iterator[Planes]:
    """Readers with this lifetime, which no thread extends."""
    logs = EmbeddedLogClient(database, queue_life_seconds=life_seconds)
    logs._keeper.add = lambda reader: None  # type: ignore[method-assign]
    planes = Planes(EmbeddedDataPlane(database), logs)
    yield planes
    planes.close()


@pytest.fixture
def planes(database: str) -> Iterator[Planes]:
    """Readers that live longer than any test, however slow the machine is."""
    with unkept(database, 3600.0) as planes:
        yield planes


@pytest.fixture
def mortal(database: str) -> Iterator[Planes]:
    """Readers that count as dead a second after their last call."""
    with unkept(database, 1.0) as planes:
        yield planes


def queue(planes: Planes, log: str, owner: str = "reader") -> EmbeddedQueueReader:
    found = planes.queue(log, "s", owner)
    assert isinstance(found, EmbeddedQueueReader)
    return found


def test_what_a_dead_reader_held_is_given_to_others(mortal: Planes) -> None:
    planes = mortal
    log = planes.log("s")
    planes.send(log, b"1", b"2")
    dead, alive = queue(planes, log, "dead"), queue(planes, log, "alive")
    held = planes.read(dead, 2)
    assert list(alive.read(2)) == []

    found = planes.read(alive, 2)

    assert payloads(found) == [b"1", b"2"]
    assert [one.deliveries for one in found] == [2, 2]
    assert not dead.is_current
    assert list(dead.acknowledge([one.position for one in held])) == planes.positions(log, 0, 1)
    with pytest.raises(LostRace):
        dead.read(1)
    assert planes.plane.backlog(log, "s") == 2


def test_a_reader_that_is_kept_alive_keeps_what_it_holds(database: str) -> None:
    planes = Planes(EmbeddedDataPlane(database), EmbeddedLogClient(database, queue_life_seconds=0.5))
    log = planes.log("s")
    planes.send(log, b"1")
    busy, other = queue(planes, log, "busy"), queue(planes, log, "other")
    (held,) = planes.read(busy, 1)
    heard = busy._contact_at
    wait_until(lambda: busy._contact_at > heard + 1.0, message="two lives of a reader that does nothing")

    assert list(other.read(1)) == []
    assert busy.is_current
    assert list(busy.acknowledge([held.position])) == []
    planes.close()


def test_the_keeper_tells_a_reader_that_it_is_known_no_more(database: str) -> None:
    planes = Planes(EmbeddedDataPlane(database), EmbeddedLogClient(database, queue_life_seconds=0.5))
    reader = queue(planes, planes.log("s"))

    planes.plane.seek(reader._backing_topic, "s", 0)

    wait_until(lambda: not reader.is_current, message="the keeper's word")
    with pytest.raises(LostRace):
        reader.read(1)
    planes.close()


def test_a_batch_whose_answer_was_lost_is_given_again(database: str, planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, b"1", b"2", b"3")
    reader, other = queue(planes, log), queue(planes, log, "other")
    take = "SELECT log_offset FROM embedded.queue_take({}, 's', '{}', 1, 2, 1000, 100, 1) WHERE payload IS NOT NULL"
    assert query(database, take.format(reader._queue[0], reader.mark)) == [(0,), (1,)]  # nobody hears of it

    found = planes.read(reader, 2)

    assert payloads(found) == [b"1", b"2"]
    assert [one.deliveries for one in found] == [1, 1]
    assert payloads(planes.read(other, 1)) == [b"3"]
    assert query(database, take.format(reader._queue[0], reader.mark)) == [(0,), (1,)]
    planes.send(log, b"4")
    planes.read(reader, 1)
    assert query(database, take.format(reader._queue[0], reader.mark)) == [], "an old number takes nothing"


def test_what_is_in_hand_is_bounded(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "MAX_UNSETTLED", 3)
    log = planes.log("s")
    planes.send(log, *(b"%d" % number for number in range(5)))
    reader = queue(planes, log)

    held = planes.read(reader, 3)
    assert list(reader.read(5)) == []
    reader.give_back([held[0].position])
    again = planes.read(reader, 1)
    assert list(reader.read(5)) == [], "what comes again makes no room"
    reader.acknowledge([one.position for one in [*again, *held[1:]]])

    assert payloads(planes.read(reader, 2)) == [b"3", b"4"]


def test_a_read_is_bounded_in_bytes_but_always_gives_a_message(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "MAX_READ_BYTES", 10)
    log = planes.log("s")
    planes.send(log, b"x" * 20, b"y" * 6, b"z" * 6)
    reader = queue(planes, log)

    found = [planes.read(reader, 1), list(reader.read(9)), list(reader.read(9))]
    assert [len(one) for one in found] == [1, 1, 1]
    reader.give_back([one.position for batch in found for one in batch])

    assert [len(reader.read(9)) for _ in range(4)] == [1, 1, 1, 0]


def test_only_what_is_settled_is_trimmed(planes: Planes) -> None:
    """The position is the lowest message that is not settled, however many above it are."""
    log = planes.log("s")
    planes.send(log, b"1", b"2", b"3", b"4", b"5")
    assert isinstance(planes.plane, EmbeddedDataPlane)
    reader = queue(planes, log)
    planes.read(reader, 4)
    reader.acknowledge(planes.positions(log, 0, 2))

    assert planes.plane.trim(0.0).messages == 1
    assert planes.plane.backlog(log, "s") == 3
    reader.acknowledge(planes.positions(log, 1, 3))
    assert planes.plane.trim(0.0).messages == 3
    assert payloads(planes.read(reader, 1)) == [b"5"]


def test_what_nobody_had_in_hand_does_not_count_as_delivered(planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, b"1")
    reader = queue(planes, log)
    reader.give_back([planes.read(reader, 1)[0].position], unseen=True)

    assert planes.read(reader, 1)[0].deliveries == 1


def test_reading_in_order_ends_a_queue_and_the_other_way_round(database: str, planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, b"1", b"2")
    shared = queue(planes, log)
    planes.read(shared, 2)
    shared.acknowledge(planes.positions(log, 1))

    in_order = planes.reader(log, "s")

    assert payloads(planes.read(in_order, 2)) == [b"1", b"2"]
    with pytest.raises(LostRace):
        shared.read(1)
    assert query(database, "SELECT log_offset FROM embedded.unsettled") == []
    queue(planes, log)
    with pytest.raises(LostRace):
        in_order.read(1)


def test_parts_of_a_cursor_become_one_when_it_is_read_as_a_queue(planes: Planes) -> None:
    log = planes.log("s")
    low, high = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)
    planes.send_to(log, low, b"low")
    planes.send_to(log, high, b"high")
    reader = planes.reader(log, "s", bucket=high)
    reader.acknowledge(planes.read(reader, 1)[0].position)
    reader.close()

    assert payloads(planes.read(queue(planes, log), 2)) == [b"low", b"high"]


def test_what_is_trimmed_before_it_is_read_at_a_position_is_told(planes: Planes) -> None:
    log = planes.log()
    planes.send(log, b"1", b"2", b"3")
    reader = planes.reader_at(log, None)
    (first,) = planes.read(reader, 1)
    assert isinstance(planes.plane, EmbeddedDataPlane)
    assert planes.plane.trim(0.0).messages == 3

    with pytest.raises(DataGone, match="messages 1 to 2 were trimmed"):
        reader.read(1)
    with pytest.raises(DataGone):
        planes.reader_at(log, first.position)
    with pytest.raises(DataGone):
        planes.reader_at(log, None)
    planes.send(log, b"4")
    assert payloads(planes.read(planes.reader_at(log, *planes.positions(log, 2)), 1)) == [b"4"]


def test_queues_go_with_their_subscription_and_their_log(database: str, planes: Planes) -> None:
    log, other = planes.log("s"), planes.log("s")
    for one in (log, other):
        planes.send(one, b"1")
        planes.read(queue(planes, one), 1)

    planes.plane.delete_subscription(log, "s")
    planes.plane.delete_segment(other)

    assert query(database, "SELECT count(*) FROM embedded.unsettled") == [(0,)]
    assert query(database, "SELECT count(*) FROM embedded.queue_reader") == [(0,)]


def test_the_last_acknowledgement_of_a_closed_log_rings(planes: Planes) -> None:
    log = planes.log("s")
    reader = queue(planes, log)
    rung: list[str] = []
    other = planes.logs.open_queue_reader(log, "s", owner="other", on_arrival=lambda: rung.append("rung"))
    planes.readers.append(other)
    planes.send(log, b"1")
    planes.plane.terminate_segment(log)
    (message,) = planes.read(reader, 1)
    wait_until(lambda: len(rung) >= 2, message="the message and the end of the log")
    rung.clear()

    reader.acknowledge([message.position])

    wait_until(lambda: bool(rung), message="the callback")
    assert other.is_drained()


def test_many_readers_take_and_settle_all_exactly_once_while_nobody_dies(planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, *(b"%d" % number for number in range(400)))

    def work(name: str) -> list[bytes]:
        reader = queue(planes, log, name)
        done: list[bytes] = []
        while not reader.is_drained():
            for message in reader.read(7):
                if message.deliveries == 1 and message.position[1] % 5 == 0:
                    reader.give_back([message.position])
                else:
                    assert list(reader.acknowledge([message.position])) == []
                    done.append(message.payload)
        return done

    planes.plane.terminate_segment(log)
    with ThreadPoolExecutor(4) as threads:
        found = [
            payload
            for share in threads.map(work, [secrets.token_hex(2) for _ in range(4)])
            for payload in share
        ]

    assert sorted(found) == sorted(b"%d" % number for number in range(400))
