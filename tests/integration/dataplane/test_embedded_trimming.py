"""Trimming: what everybody has acknowledged and what is old goes from the front of embedded logs, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psycopg2
import pytest

from controller.dataplane.base import Successor, Trimmed
from controller.dataplane.embedded import EmbeddedDataPlane, plane
from controller.domain.hash_range import FULL_RANGE
from controller.postgres.address import DatabaseAddress
from tests.integration.dataplane.test_embedded import messages_left, query
from tests.support.planes import Planes, payloads
from tests.support.store_driver import SOMEBODY_WAITS
from tests.support.waiting import wait_until

LOW, HIGH = FULL_RANGE.halves()
DAY_SECONDS = 86_400.0


@pytest.fixture
def trimmer(database: str) -> Iterator[EmbeddedDataPlane]:
    """A plane with time enough to be through."""
    found = EmbeddedDataPlane(database, call_timeout_seconds=20.0)
    yield found
    found.close()


def age(database: str, *, below: int) -> None:
    """Messages below the offset are two days old."""
    query(
        database,
        "UPDATE embedded.message SET published_at = clock_timestamp() - interval '2 days' WHERE log_offset < %s",
        below,
    )


def first_offset(database: str, log: str) -> int:
    ((found,),) = query(database, "SELECT first_offset FROM embedded.log WHERE name = %s", log)
    return int(found)


def test_what_is_acknowledged_by_all_and_old_goes(
    database: str, planes: Planes, trimmer: EmbeddedDataPlane
) -> None:
    log = planes.log("a", "b")
    planes.send(log, b"0", b"1", b"2", b"3")
    age(database, below=3)
    assert trimmer.trim(DAY_SECONDS) == Trimmed(0, is_complete=True), "nobody has read it"
    assert planes.drain(log, "a") == [b"0", b"1", b"2", b"3"]
    assert trimmer.trim(DAY_SECONDS).messages == 0, "one has, one has not"
    reader = planes.reader(log, "b")
    reader.acknowledge(reader.read(2)[-1].position)

    assert trimmer.trim(DAY_SECONDS).messages == 2, "what is read"
    assert messages_left(database) == 2
    reader.acknowledge(reader.read(2)[-1].position)
    assert trimmer.trim(DAY_SECONDS).messages == 1, "what is old"

    assert first_offset(database, log) == 3
    assert planes.plane.backlog(log, "a") == 0
    planes.send(log, b"4")
    assert payloads(reader.read(9)) == [b"4"]
    assert planes.plane.sample([log])[log].msg_in == 5


def test_all_parts_of_a_cursor_count(database: str, planes: Planes, trimmer: EmbeddedDataPlane) -> None:
    log = planes.log("s")
    planes.send_to(log, LOW, b"0", b"1")
    planes.send_to(log, HIGH, b"2", b"3")
    low, high = (planes.reader(log, "s", owner=str(part), bucket=part) for part in (LOW, HIGH))
    low.acknowledge(low.read(9)[-1].position)
    high.acknowledge(high.read(1)[-1].position)

    assert trimmer.trim(0.0).messages == 3
    low.close()
    high.close()
    assert planes.drain(log, "s") == [b"3"]
    assert trimmer.trim(0.0).messages == 1


def test_a_log_without_subscriptions_keeps_what_is_young(
    database: str, planes: Planes, trimmer: EmbeddedDataPlane
) -> None:
    log = planes.log()
    planes.send(log, b"0", b"1")
    age(database, below=1)

    assert trimmer.trim(DAY_SECONDS).messages == 1
    planes.plane.create_subscription(log, "late")

    assert planes.plane.backlog(log, "late") == 1
    assert planes.drain(log, "late") == [b"1"]


def test_a_terminated_log_is_trimmed_too_and_stays_drained(
    planes: Planes, trimmer: EmbeddedDataPlane
) -> None:
    log = planes.log("s")
    planes.send(log, b"0", b"1")
    planes.plane.terminate_segment(log)
    reader = planes.reader(log, "s")
    reader.acknowledge(reader.read(2)[-1].position)

    assert trimmer.trim(0.0).messages == 2
    assert reader.is_drained()
    assert planes.plane.terminate_segment(log) == "1"


def test_a_seek_to_before_what_is_trimmed_goes_to_the_first_that_is_there(
    database: str, planes: Planes, trimmer: EmbeddedDataPlane
) -> None:
    log = planes.log("s")
    planes.send(log, *(b"%d" % n for n in range(8)))
    query(database, "UPDATE embedded.message SET published_at = to_timestamp(1000 + log_offset)")
    reader = planes.reader(log, "s")
    reader.acknowledge(reader.read(3)[-1].position)
    assert trimmer.trim(0.0).messages == 3

    for instant_ms, first in (
        (0, 3),
        (1_002_000, 3),
        (1_003_000, 3),
        (1_003_001, 4),
        (1_007_000, 7),
        (2_000_000, 8),
    ):
        planes.plane.seek(log, "s", instant_ms)
        assert planes.plane.backlog(log, "s") == 8 - first
        assert payloads(planes.reader(log, "s").read(1)) == ([b"%d" % first] if first < 8 else [])


def test_a_successor_made_again_begins_where_the_log_does(planes: Planes, trimmer: EmbeddedDataPlane) -> None:
    log = planes.log("s")
    planes.send(log, b"0", b"1")
    reader = planes.reader(log, "s")
    reader.acknowledge(reader.read(1)[-1].position)
    assert trimmer.trim(0.0).messages == 1

    trimmer.create_successors([Successor(log, (), ("s", "new"))])
    planes.plane.create_segment(log, ["newer"])

    assert [planes.plane.backlog(log, name) for name in ("s", "new", "newer")] == [1, 1, 1]


def test_trimming_is_in_chunks_and_goes_on_where_its_time_was_over(
    database: str, planes: Planes, trimmer: EmbeddedDataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "TRIM_CHUNK", 2)
    monkeypatch.setattr(plane, "_LOGS_PER_CHECK", 1)
    logs = [planes.log() for _ in range(3)]
    for log in logs:
        planes.send(log, *(b"%d" % n for n in range(5)))
    clock = iter([0.0, 0.0, 0.0, 0.0, 0.0, 100.0])
    with monkeypatch.context() as hurried:
        hurried.setattr(plane, "time", SimpleNamespace(monotonic=lambda: next(clock, 100.0)))
        first = trimmer.trim(0.0)
    assert not first.is_complete
    assert 0 < first.messages < 15
    assert messages_left(database) == 15 - first.messages

    assert trimmer.trim(0.0) == Trimmed(15 - first.messages, is_complete=True)
    assert messages_left(database) == 0


def test_nobody_moves_a_cursor_back_while_its_log_is_trimmed(
    database: str, planes: Planes, trimmer: EmbeddedDataPlane
) -> None:
    """A seek that began before would set it to messages that are gone."""
    log = planes.log("s")
    planes.send(log, b"0", b"1")
    planes.drain(log, "s")
    somebody = psycopg2.connect(DatabaseAddress.of(database).uri)
    with ThreadPoolExecutor(1) as pool, somebody, somebody.cursor() as cursor:
        cursor.execute("SELECT embedded.trim_log(log_id, clock_timestamp(), 9) FROM embedded.log")
        assert cursor.fetchall() == [(2,)]
        seeking = pool.submit(trimmer.seek, log, "s", 0)
        wait_until(lambda: seeking.done() or query(database, SOMEBODY_WAITS), message="the seek waits")
        somebody.commit()
        seeking.result()
    somebody.close()

    assert planes.plane.backlog(log, "s") == 0
    planes.send(log, b"2")
    assert planes.drain(log, "s") == [b"2"]


def test_a_log_that_somebody_holds_is_left_for_later(
    database: str, planes: Planes, trimmer: EmbeddedDataPlane
) -> None:
    log = planes.log()
    planes.send(log, b"0")
    somebody = psycopg2.connect(DatabaseAddress.of(database).uri)
    with somebody, somebody.cursor() as cursor:
        cursor.execute("SELECT FROM embedded.log FOR KEY SHARE")
        assert trimmer.trim(0.0) == Trimmed(0, is_complete=True)
    somebody.close()

    assert trimmer.trim(0.0) == Trimmed(1, is_complete=True)


def test_what_is_trimmed_cannot_be_brought_back_by_hand(
    database: str, planes: Planes, trimmer: EmbeddedDataPlane
) -> None:
    log = planes.log()
    planes.send(log, b"0")
    assert trimmer.trim(0.0).messages == 1

    with pytest.raises(psycopg2.errors.CheckViolation, match="cannot be restored"):
        query(database, "UPDATE embedded.log SET first_offset = 0")
    with pytest.raises(psycopg2.errors.CheckViolation, match="log_first_offset_within"):
        query(database, "UPDATE embedded.log SET first_offset = 2")
