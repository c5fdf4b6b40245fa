"""What an application that keeps positions itself relies on, on every data plane: from there on, all of it, or an error."""

from __future__ import annotations

import threading

import pytest

from controller.domain.errors import DataGone, SegmentNotFound
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_a_log_is_read_from_its_beginning_without_a_subscription(planes: Planes) -> None:
    log = planes.log()
    planes.send(log, b"1", b"2")
    planes.send(log, b"3")

    assert payloads(planes.read(planes.reader_at(log, None), 3)) == [b"1", b"2", b"3"]


def test_every_position_can_be_gone_on_from(planes: Planes) -> None:
    """Within a batch too, which a broker stores as one entry."""
    log = planes.log()
    planes.send(log, b"1", b"2", b"3")
    planes.send(log, b"4")
    found = planes.read(planes.reader_at(log, None), 4)

    for index, message in enumerate(found[:3]):
        rest = planes.read(planes.reader_at(log, message.position), 3 - index)
        assert payloads(rest) == [b"1", b"2", b"3", b"4"][index + 1 :]


def test_a_reader_goes_on_with_what_comes_later_and_is_rung(planes: Planes) -> None:
    log = planes.log()
    planes.send(log, b"1")
    rung = threading.Event()
    reader = planes.logs.open_reader_at(log, None, on_arrival=rung.set)
    planes.readers.append(reader)
    assert payloads(planes.read(reader, 1)) == [b"1"]
    rung.clear()

    planes.send(log, b"2")

    wait_until(rung.is_set, message="the callback")
    assert payloads(planes.read(reader, 1)) == [b"2"]


def test_several_readers_do_not_disturb_each_other_nor_a_subscription(planes: Planes) -> None:
    log = planes.filled_log(b"1", b"2")

    for _ in range(2):
        assert payloads(planes.read(planes.reader_at(log, None), 2)) == [b"1", b"2"]

    assert planes.plane.backlog(log, "s") == 2


def test_the_end_is_a_place_before_what_comes(planes: Planes) -> None:
    log = planes.log()
    empty = planes.logs.locate(log, None)
    planes.send(log, b"1", b"2")
    behind = planes.logs.locate(log, None)
    planes.send(log, b"3")

    assert payloads(planes.read(planes.reader_at(log, empty), 3)) == [b"1", b"2", b"3"]
    assert payloads(planes.read(planes.reader_at(log, behind), 1)) == [b"3"]


def test_an_instant_is_a_place_before_the_first_message_since(planes: Planes) -> None:
    log = planes.log()
    planes.send(log, b"1")
    (first,) = planes.read(planes.reader_at(log, None), 1)
    reader = planes.reader_at(log, first.position)

    def send_later() -> int | None:
        """Until the clock of the messages has gone on."""
        planes.send(log, b"later")
        (found,) = planes.read(reader, 1)
        return found.published_at_ms if found.published_at_ms > first.published_at_ms else None

    instant = wait_until(send_later, message="a later millisecond")
    assert instant is not None
    everything = planes.logs.locate(log, 0)
    since = planes.logs.locate(log, instant)
    nothing = planes.logs.locate(log, instant + 10_000_000)
    planes.send(log, b"end")

    assert planes.read(planes.reader_at(log, everything), 1)[0].position == first.position
    assert planes.read(planes.reader_at(log, since), 1)[0].published_at_ms >= instant
    assert payloads(planes.read(planes.reader_at(log, since), 1)) == [b"later"]
    assert payloads(planes.read(planes.reader_at(log, nothing), 1)) == [b"end"]


def test_a_log_is_at_its_end_when_it_is_closed_and_all_is_read(planes: Planes) -> None:
    log = planes.log()
    planes.send(log, b"1", b"2")
    reader = planes.reader_at(log, None)
    found = planes.read(reader, 1)
    planes.plane.terminate_segment(log)
    assert not reader.is_at_end()

    found += planes.read(reader, 1)

    assert reader.is_at_end()
    assert list(reader.read(1)) == []
    assert planes.reader_at(log, found[1].position).is_at_end()
    assert payloads(planes.read(planes.reader_at(log, found[0].position), 1)) == [b"2"]


def test_a_log_that_is_open_is_not_at_its_end(planes: Planes) -> None:
    assert not planes.reader_at(planes.log(), None).is_at_end()


def test_a_log_that_was_closed_empty_is_at_its_end(planes: Planes) -> None:
    log = planes.log()
    planes.plane.terminate_segment(log)

    assert planes.reader_at(log, None).is_at_end()


def test_what_is_not_there_is_refused(planes: Planes) -> None:
    log = planes.plane.backing_topic(planes.topic(), "0000-ffff-0")

    with pytest.raises(SegmentNotFound):
        planes.reader_at(log, None)
    with pytest.raises(SegmentNotFound):
        planes.logs.locate(log, None)
    with pytest.raises(SegmentNotFound):
        planes.logs.locate(log, 0)


def test_a_log_that_is_deleted_under_its_reader_is_no_end(planes: Planes) -> None:
    log = planes.log()
    planes.send(log, b"1")
    reader = planes.reader_at(log, None)
    planes.read(reader, 1)

    planes.plane.delete_segment(log)

    planes.ends(lambda: reader.read(1) or reader.is_at_end(), DataGone)
