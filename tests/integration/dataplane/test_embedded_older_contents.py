"""Readers of embedded logs that became shorter: nothing beyond the end counts as read, and what is written there next is delivered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from controller import client_metrics
from controller.dataplane.log_client import LogMessage, LogReader, OutgoingMessage, QueueReader
from controller.domain.errors import DataGone, DataPlaneUnavailable, LogShortened, LostRace
from controller.domain.hash_range import HashRange
from tests.integration.dataplane.test_embedded import query
from tests.support.older_contents import OlderContents
from tests.support.planes import Planes, payloads

LOW, HIGH = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)
Written = Callable[[], int]


@pytest.fixture
def log(planes: Planes) -> str:
    """A log with fifteen messages, of which a subscription has acknowledged twelve."""
    log = planes.log("s")
    planes.send(log, *numbers(0, 15))
    reader = planes.reader(log, "s")
    reader.acknowledge(planes.read(reader, 12)[-1].position)
    reader.close()
    return log


@pytest.fixture(params=[False, True], ids=["shorter", "grown again"])
def send_again(request: pytest.FixtureRequest, planes: Planes, log: str) -> Written:
    """Writes five other messages, and more where the log is to reach beyond the place of its old readers."""
    return lambda: planes.send(log, *again(10 if request.param else 5))


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def again(count: int) -> list[bytes]:
    return [b"again %d" % number for number in range(count)]


def message(payload: bytes) -> OutgoingMessage:
    return OutgoingMessage(payload)


def held_by_hand(database: str, log: str) -> tuple[int, int]:
    """Log and generation of a cursor that a client of before has taken."""
    ((log_id, generation),) = query(
        database, "SELECT log_id, generation FROM embedded.take(%s, 's', 'a', '{}', 0, 65535)", log
    )
    return log_id, generation


def read_on(planes: Planes, log: str, reader: LogReader) -> list[bytes]:
    """What a reader that follows upon this one is given."""
    reader.close()
    return payloads(planes.reader(log, "s").read(100))


def read_and_lose(
    planes: Planes, database: str, log: str, reader: LogReader | QueueReader, count: int = 8
) -> list[LogMessage]:
    """Write the messages 15 to 19, read `count` messages, and take the five from the log again. Return what was read."""
    older = OlderContents(database)
    planes.send(log, *numbers(15, 20))
    found = planes.read(reader, count)
    older.restore()
    return found


def test_a_read_beyond_the_end_is_refused_and_reported(planes: Planes, database: str, log: str) -> None:
    reader = planes.reader(log, "s")
    read_and_lose(planes, database, log, reader)
    count = client_metrics.SHORTENED_LOGS._value.get()

    with capture_logs() as lines, pytest.raises(LogShortened) as refused:
        reader.read(10)

    assert refused.value.message == (
        f"the log became shorter: position 20 is beyond the end 15 of {log}; reading continues at 12"
    )
    (line,) = [line for line in lines if line["event"] == "log shortened"]
    assert (line["log"], line["subscription"], line["log_level"]) == (log, "s", "warning")
    assert (line["own_position"], line["log_end"], line["server_position"]) == (20, 15, 12)
    assert client_metrics.SHORTENED_LOGS._value.get() == count + 1
    planes.send(log, *again(5))
    assert read_on(planes, log, reader) == [*numbers(12, 15), *again(5)]


def test_what_is_written_to_a_shorter_log_is_delivered(
    planes: Planes, database: str, log: str, send_again: Written
) -> None:
    older = OlderContents(database)
    reader = planes.reader(log, "s")
    planes.send(log, *numbers(15, 20))
    planes.read(reader, 8)
    older.restore()
    send_again()

    with pytest.raises(LostRace):  # the cursor that was taken is lost with the messages
        reader.read(10)
    assert read_on(planes, log, reader)[:8] == [*numbers(12, 15), *again(5)]


def test_a_log_that_grew_again_is_not_read_on_in_the_middle(planes: Planes, database: str, log: str) -> None:
    reader = planes.reader(log, "s")
    read_and_lose(planes, database, log, reader)
    planes.send(log, *again(10))

    with pytest.raises(
        LogShortened, match=r"other messages were written below position 20 of .*; reading continues at 12"
    ):
        reader.read(10)
    assert read_on(planes, log, reader) == [*numbers(12, 15), *again(10)]


def test_an_acknowledgement_beyond_the_end_is_refused(
    planes: Planes, database: str, log: str, send_again: Written
) -> None:
    reader = planes.reader(log, "s")
    found = read_and_lose(planes, database, log, reader)

    with pytest.raises(LogShortened):
        reader.acknowledge(found[-1].position)
    send_again()
    with pytest.raises(LogShortened):
        reader.acknowledge(found[-1].position)
    reader.acknowledge(found[2].position)  # message 14, which both histories have
    assert read_on(planes, log, reader)[:5] == again(5)


def test_acknowledgements_are_lost_with_their_messages(
    planes: Planes, database: str, log: str, send_again: Written
) -> None:
    reader = planes.reader(log, "s")
    older = OlderContents(database)
    planes.send(log, *numbers(15, 20))
    reader.acknowledge(planes.read(reader, 8)[-1].position)
    older.restore()
    send_again()

    with pytest.raises(LogShortened):
        reader.read(10)
    assert read_on(planes, log, reader)[:8] == [*numbers(12, 15), *again(5)]


def test_what_a_bucket_reader_passed_over_is_looked_at_again(planes: Planes, database: str) -> None:
    log = planes.log("s")
    low, high = (planes.reader(log, "s", str(b), [str(LOW), str(HIGH)], bucket=b) for b in (LOW, HIGH))
    planes.send_to(log, LOW, *numbers(0, 3))
    older = OlderContents(database)
    planes.send_to(log, LOW, *numbers(3, 6))
    assert payloads(low.read(10)) == numbers(0, 6)
    assert list(high.read(10)) == []  # none of them is its own
    older.restore()
    planes.send_to(log, HIGH, *again(3))

    for reader in (low, high):
        with pytest.raises(LogShortened):
            reader.read(10)
        reader.close()
    low, high = (planes.reader(log, "s", str(b), [str(LOW), str(HIGH)], bucket=b) for b in (LOW, HIGH))
    assert payloads(low.read(10)) == numbers(0, 3)
    assert payloads(high.read(10)) == again(3)


def test_a_log_with_unread_messages_is_not_drained(planes: Planes, database: str, log: str) -> None:
    reader = planes.reader(log, "s")
    found = read_and_lose(planes, database, log, reader)
    planes.send(log, *again(5))
    planes.plane.terminate_segment(log)

    with pytest.raises(LogShortened):
        reader.acknowledge(found[-1].position)
    assert not reader.is_drained()
    assert planes.plane.backlog(log, "s") == 8
    reader.close()
    assert planes.drain(log, "s") == [*numbers(12, 15), *again(5)]


def test_a_reader_of_a_lost_history_is_not_taken_for_its_heir(
    planes: Planes, database: str, log: str
) -> None:
    """The restored sequence gives out again the generation that the stale reader holds."""
    older = OlderContents(database)
    stale = planes.reader(log, "s", "stale")
    found = planes.read(stale, 3)
    older.restore()
    planes.reader(log, "s", "heir")

    with pytest.raises(LostRace):
        stale.acknowledge(found[-1].position)
    assert planes.plane.backlog(log, "s") == 3


def test_a_client_of_before_is_refused_beyond_the_end(planes: Planes, database: str, log: str) -> None:
    """Its statements name no timeline."""
    log_id, generation = held_by_hand(database, log)

    assert (
        query(
            database,
            f"SELECT log_offset FROM embedded.read({log_id}, 's', {generation}, 20, 5, 1000, 100, 1)",
        )
        == []
    )
    acknowledge = f"SELECT embedded.acknowledge({log_id}, 's', {generation}, {{}}, 0, 0)"
    assert query(database, acknowledge.format(20)) == [(False,)]
    assert query(database, f"SELECT log_offset FROM embedded.read_at({log_id}, 20, 5, 1000)") == []
    assert query(database, acknowledge.format(15)) == [(True,)]


class TestQueues:
    def test_what_is_written_to_a_shorter_log_is_given_out(
        self, planes: Planes, database: str, log: str, send_again: Written
    ) -> None:
        reader = planes.queue(log, "s")
        lost = read_and_lose(planes, database, log, reader)
        send_again()

        with pytest.raises(LogShortened, match="reading continues at 12"):
            reader.read(10)
        assert not reader.is_current
        reader.close()
        found = planes.queue(log, "s").read(100)
        assert payloads(found)[:8] == [*numbers(12, 15), *again(5)]
        assert lost[-1].position not in [one.position for one in found]

    def test_an_acknowledgement_of_a_lost_message_settles_no_other(
        self, planes: Planes, database: str, log: str
    ) -> None:
        reader = planes.queue(log, "s")
        assert len(planes.read(reader, 3)) == 3
        lost = read_and_lose(planes, database, log, reader, 5)
        planes.send(log, *again(5))
        heir = planes.queue(log, "s", "heir")
        planes.read(heir, 5)

        assert list(reader.acknowledge([one.position for one in lost])) == [one.position for one in lost]
        assert planes.plane.backlog(log, "s") == 8

    def test_one_that_gets_other_messages_at_the_offsets_that_it_holds_settles_each_by_itself(
        self, planes: Planes, database: str
    ) -> None:
        log = planes.log("s")
        reader = planes.queue(log, "s")
        older = OlderContents(database)
        planes.send(log, *numbers(0, 5))
        lost = planes.read(reader, 5)
        older.restore()
        planes.send(log, *again(5))
        reader._highest = (0, -1)  # type: ignore[attr-defined]  # as if it had not been refused
        found = planes.read(reader, 5)

        assert list(reader.acknowledge([one.position for one in lost])) == [one.position for one in lost]
        assert planes.plane.backlog(log, "s") == 5
        assert list(reader.acknowledge([one.position for one in found])) == []
        assert planes.plane.backlog(log, "s") == 0


class TestPositions:
    def test_a_position_goes_on_where_the_history_of_the_log_does(
        self, planes: Planes, database: str, log: str, send_again: Written
    ) -> None:
        older = OlderContents(database)
        planes.send(log, *numbers(15, 20))
        kept = planes.logs.locate(log, None)
        older.restore()
        send_again()

        with capture_logs() as lines, pytest.raises(LogShortened, match="reading continues at 15") as refused:
            planes.reader_at(log, kept)

        assert [line["server_position"] for line in lines if line["event"] == "log shortened"] == [15]
        assert refused.value.resume is not None
        assert payloads(planes.reader_at(log, refused.value.resume).read(100))[:5] == again(5)

    def test_a_position_that_the_log_has_is_gone_on_from(
        self, planes: Planes, database: str, log: str, send_again: Written
    ) -> None:
        kept = planes.logs.locate(log, None)
        older = OlderContents(database)
        planes.send(log, *numbers(15, 20))
        older.restore()
        send_again()

        assert payloads(planes.reader_at(log, kept).read(100))[:5] == again(5)

    def test_positions_of_another_history_are_lower_than_what_is_written_next(
        self, planes: Planes, database: str, log: str
    ) -> None:
        older = OlderContents(database)
        planes.send(log, *numbers(15, 20))
        kept = planes.logs.locate(log, None)
        older.restore()
        planes.send(log, *again(2))

        found = planes.reader_at(log, None).read(100)

        assert [one.position for one in found] == sorted(one.position for one in found)
        assert found[14].position < kept < found[15].position

    def test_timelines_rise_though_the_clock_falls(self, planes: Planes, database: str, log: str) -> None:
        planes.send(log, b"before")
        query(
            database, "UPDATE embedded.timeline SET timeline = timeline + 3600000000, incarnation = 'another'"
        )
        planes.send(log, b"after")

        found = planes.reader_at(log, None).read(100)

        assert [one.position for one in found] == sorted(one.position for one in found)
        assert found[15].position[0] < found[16].position[0]

    def test_a_reader_is_opened_again_where_its_log_became_shorter(
        self, planes: Planes, database: str, log: str, send_again: Written
    ) -> None:
        older = OlderContents(database)
        planes.send(log, *numbers(15, 20))
        reader = planes.reader_at(log, None)
        planes.read(reader, 20)
        older.restore()
        with pytest.raises(DataPlaneUnavailable, match="became shorter"):
            reader.is_at_end()
        send_again()

        with pytest.raises(DataPlaneUnavailable, match="became shorter"):
            reader.read(10)

    def test_a_position_of_before_goes_on_while_the_log_reaches_it(
        self, planes: Planes, database: str, log: str
    ) -> None:
        """Such a position is the offset alone."""
        assert payloads(planes.reader_at(log, (13,)).read(10)) == [b"14"]
        assert list(planes.reader_at(log, (14,)).read(10)) == []

        with pytest.raises(DataGone, match="position 19 is beyond the end 15 of the log"):
            planes.reader_at(log, (19,))

    def test_a_log_that_took_the_id_of_another_is_not_read_in_its_place(
        self, planes: Planes, database: str, log: str
    ) -> None:
        older = OlderContents(database)
        lost = planes.log()
        reader = planes.reader_at(lost, None)
        older.restore()
        query(
            database,
            "INSERT INTO embedded.log (log_id, name) OVERRIDING SYSTEM VALUE VALUES (%s, 'segment://t/n/x/0000-ffff-0')",
            reader._log_id,  # type: ignore[attr-defined]
        )

        with pytest.raises(DataGone, match="was deleted"):
            reader.read(10)


def test_a_batch_that_only_the_lost_history_had_is_stored_when_it_is_sent_again(
    planes: Planes, database: str, log: str
) -> None:
    """Numbers of a producer's batches go back with its log."""
    planes.logs.append(log, [message(b"first")], producer="p", sequence=1)
    older = OlderContents(database)
    planes.logs.append(log, [message(b"lost")], producer="p", sequence=2)
    older.restore()

    planes.logs.append(log, [message(b"first")], producer="p", sequence=1)
    planes.logs.append(log, [message(b"lost")], producer="p", sequence=2)
    planes.logs.append(log, [message(b"third")], producer="p", sequence=3)

    assert planes.drain(log, "s")[3:] == [b"first", b"lost", b"third"]
