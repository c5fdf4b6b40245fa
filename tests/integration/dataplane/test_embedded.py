"""What only the embedded plane promises: its schema guards the laws, deletes are bounded, rights are least."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg2
import pytest

from controller.dataplane.embedded import EmbeddedDataPlane, EmbeddedLogClient, log_client, plane, reader
from controller.dataplane.registry import PlaneSettings, build_log_client, build_planes
from controller.devstack.postgres import PostgresServer
from controller.domain.errors import InvalidInput, SegmentTerminated, Terminal, Unsupported
from controller.postgres.address import DatabaseAddress
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until


def query(database: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg2.connect(DatabaseAddress.of(database).uri) as connection, connection.cursor() as cursor:
        cursor.execute(statement, values)
        found = cursor.fetchall() if cursor.description else []
    connection.close()
    return found


def messages_left(database: str) -> int:
    ((count,),) = query(database, "SELECT count(*) FROM embedded.message")
    return int(count)


def test_a_terminated_log_cannot_be_opened_or_grown_by_hand(database: str, planes: Planes) -> None:
    log = planes.log()
    planes.plane.terminate_segment(log)

    for change in ("terminated_at = NULL", "next_offset = next_offset + 1"):
        with pytest.raises(psycopg2.errors.CheckViolation, match="accepts no more messages"):
            query(database, f"UPDATE embedded.log SET {change} WHERE name = %s", log)


def test_an_append_waits_for_whoever_holds_the_log_and_then_looks_at_it(
    database: str, planes: Planes
) -> None:
    """Whoever terminates holds the log's row: what was on its way meanwhile must not land behind the fence."""
    log = planes.log("s")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    holder = psycopg2.connect(DatabaseAddress.of(database).uri)
    with ThreadPoolExecutor(1) as pool, holder, holder.cursor() as cursor:
        cursor.execute(
            "UPDATE embedded.log SET terminated_at = clock_timestamp() WHERE name = %s RETURNING next_offset",
            (log,),
        )
        sending = pool.submit(planes.send, log, b"1")
        wait_until(lambda: sending.done() or query(database, waiting) == [(1,)], message="the append waits")
        assert not sending.done()
        holder.commit()
        with pytest.raises(SegmentTerminated):
            sending.result()
    holder.close()
    assert planes.drain(log, "s") == []


def test_times_never_fall_within_a_log_even_if_the_clock_does(database: str, planes: Planes) -> None:
    log = planes.log("s")
    query(database, "UPDATE embedded.log SET last_published_at = clock_timestamp() + interval '1 hour'")
    planes.send(log, b"1")

    assert query(
        database,
        "SELECT published_at = last_published_at FROM embedded.log JOIN embedded.message USING (log_id)",
    ) == [(True,)]
    assert query(database, "SELECT last_published_at > clock_timestamp() FROM embedded.log") == [(True,)]


def test_a_seek_to_the_very_instant_of_a_message_begins_with_it(database: str, planes: Planes) -> None:
    """By hand: as a rule instants have microseconds, and seeks are in milliseconds."""
    log = planes.log("s")
    planes.send(log, b"1", b"2", b"3")
    query(database, "UPDATE embedded.message SET published_at = to_timestamp(1000 + log_offset)")

    planes.plane.seek(log, "s", 1_001_000)

    assert planes.drain(log, "s") == [b"2", b"3"]


def test_offsets_and_counters_cannot_be_turned_back_by_hand(database: str, planes: Planes) -> None:
    log = planes.log()
    planes.send(log, b"12")

    for change in ("next_offset = 0", "byte_in = 0"):
        with pytest.raises(psycopg2.errors.CheckViolation, match="only rise"):
            query(database, f"UPDATE embedded.log SET {change} WHERE name = %s", log)


def test_the_last_position_is_the_last_offset(planes: Planes) -> None:
    empty, full = planes.log(), planes.log()
    planes.send(full, b"1", b"2")

    assert planes.plane.terminate_segment(empty) == "-1"
    assert planes.plane.terminate_segment(full) == "1"


def test_deleting_removes_the_messages_in_chunks(
    database: str, planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "DELETE_CHUNK", 2)
    log, other = planes.log(), planes.log()
    planes.send(log, b"1", b"2", b"3", b"4", b"5")
    planes.send(other, b"kept")

    planes.plane.delete_segment(log)

    assert messages_left(database) == 1
    assert query(database, "SELECT * FROM embedded.dropped_log") == []


def test_messages_a_delete_had_no_time_for_go_with_the_next(
    database: str, planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    big, small = planes.log("s"), planes.log()
    planes.send(big, b"1", b"2")
    with monkeypatch.context() as hurried:
        hurried.setattr(plane, "_SWEEP_SHARE", 0.0)
        planes.plane.delete_segment(big)
    assert planes.plane.backlog(big, "s") is None
    assert messages_left(database) == 2

    planes.plane.delete_segment(small)

    assert messages_left(database) == 0


def test_a_read_is_bounded_in_bytes_but_always_gives_a_message(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_READ_BYTES", 25)
    log = planes.log("s")
    sizes = (10, 10, 10, 40, 10)
    planes.send(log, *(b"x" * size for size in sizes))
    found = planes.reader(log, "s")

    assert [[len(p) for p in payloads(found.read(10))] for _ in range(4)] == [[10, 10], [10], [40], [10]]


def test_a_batch_is_bounded_in_bytes(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_client, "MAX_BATCH_BYTES", 3)
    log = planes.log("s")

    assert planes.send(log, b"12", key=b"k") == 1
    with pytest.raises(InvalidInput, match="at most 3"):
        planes.send(log, b"123", key=b"k")


def test_what_was_not_read_cannot_be_acknowledged(planes: Planes) -> None:
    log = planes.log("s")
    planes.send(log, b"1", b"2")
    found = planes.reader(log, "s")
    (first,) = found.read(1)

    with pytest.raises(InvalidInput, match="not read yet"):
        found.acknowledge((first.position[0], first.position[1] + 1))
    with pytest.raises(InvalidInput, match="limit"):
        found.read(0)


def test_the_controllers_rights_are_enough(postgres_server: PostgresServer, database: str) -> None:
    user = f"app_{secrets.token_hex(4)}"
    query(database, f"CREATE ROLE {user} LOGIN PASSWORD 'pw' IN ROLE cleave_controller")
    url = postgres_server.url(database.rpartition("/")[2], user=user, password="pw")
    planes = Planes(EmbeddedDataPlane(url), EmbeddedLogClient(url))
    try:
        log = planes.log("s")
        planes.send(log, b"1")
        assert planes.drain(log, "s") == [b"1"]
        planes.plane.seek(log, "s", 0)
        planes.plane.skip_all(log, "s")
        assert planes.plane.sample([log])[log].msg_in == 1
        planes.send(log, b"2")
        assert planes.plane.describe_logs([log])[log].cursors["s"].unread == 1  # type: ignore[attr-defined]
        planes.plane.delete_subscription(log, "s")
        planes.plane.terminate_segment(log)
        planes.plane.delete_segment(log)
    finally:
        planes.close()
        query(database, f"DROP ROLE {user}")


def test_a_user_without_rights_is_told_so(postgres_server: PostgresServer, database: str) -> None:
    user = f"nobody_{secrets.token_hex(4)}"
    query(database, f"CREATE ROLE {user} LOGIN PASSWORD 'pw'")
    stranger = EmbeddedDataPlane(postgres_server.url(database.rpartition("/")[2], user=user, password="pw"))
    with pytest.raises(Terminal, match="permission denied"):
        stranger.segment_state("segment://t/n/x/0000-ffff-0")
    stranger.close()
    query(database, f"DROP ROLE {user}")


def test_the_registry_builds_what_is_configured(database: str) -> None:
    assert build_planes(PlaneSettings()) == {}
    built = build_planes(PlaneSettings(embedded_url=database, call_timeout_seconds=3.0))
    assert {name: (p.name, p.call_timeout_seconds) for name, p in built.items()} == {
        "embedded": ("embedded", 3.0)
    }
    built["embedded"].close()
    for name in ("kafka", "embedded"):
        with pytest.raises(Unsupported, match="embedded"):
            build_log_client(name, PlaneSettings())
    build_log_client("embedded", PlaneSettings(embedded_url=database)).close()
