"""Origins and reports of embedded logs: somebody else's values, cursors in parts, and no message counted in vain."""

from __future__ import annotations

import json
from typing import Any

import psycopg2
import pytest

from controller.dataplane.base import LogReport, SetWiseDataPlane, Successor
from controller.domain.hash_range import HashRange
from controller.domain.log_origin import LogOrigin
from tests.integration.dataplane.test_embedded import query
from tests.support.planes import Planes

ORIGIN = LogOrigin("token", 3, (0,), (32768,))


def report(plane: SetWiseDataPlane, log: str) -> LogReport:
    return plane.describe_logs([log])[log]


@pytest.mark.parametrize(
    "stored", [{}, {"cleave.token": 5}, {**ORIGIN.to_properties(), "cleave.epoch": None}]
)
def test_values_of_another_program_are_no_origin(
    database: str, planes: Planes, plane: SetWiseDataPlane, stored: dict[str, Any]
) -> None:
    log = planes.log()
    query(database, "UPDATE embedded.log SET origin = %s WHERE name = %s", json.dumps(stored), log)

    assert report(plane, log).origin is None
    assert plane.create_successors([Successor(log, (), (), origin=ORIGIN)])[log].origin is None


def test_an_origin_is_a_json_object(database: str, planes: Planes) -> None:
    log = planes.log()

    with pytest.raises(psycopg2.errors.CheckViolation, match="log_origin_is_object"):
        query(database, "UPDATE embedded.log SET origin = '[]' WHERE name = %s", log)


def test_parts_of_a_cursor_are_counted_together(planes: Planes, plane: SetWiseDataPlane) -> None:
    log, (low, high) = planes.log("s"), HashRange(0, 65535).halves()
    planes.send_to(log, low, b"1", b"2")
    planes.send_to(log, high, b"3", b"4")
    reader = planes.reader(log, "s", bucket=high)
    reader.acknowledge(planes.read(reader, 2)[1].position)
    planes.settles_at(log, "s", 2)
    plane.terminate_segment(log)
    half = report(plane, log)

    other = planes.reader(log, "s", owner="other", live_owners=("reader",), bucket=low)
    other.acknowledge(planes.read(other, 2)[1].position)
    planes.settles_at(log, "s", 0)

    assert (half.cursors["s"].unread, half.is_read_to_end) == (2, False)
    assert report(plane, log).is_read_to_end


def test_a_log_that_is_trimmed_to_its_end_has_carried_messages(
    planes: Planes, plane: SetWiseDataPlane
) -> None:
    log = planes.log("s")
    planes.send(log, b"1")
    planes.drain(log, "s")
    plane.terminate_segment(log)
    assert plane.trim(0.0).messages == 1  # type: ignore[attr-defined]

    found = report(plane, log)

    assert (found.is_unused, found.is_read_to_end) == (False, True)


def test_no_message_is_counted_for_logs_that_are_read_to_their_ends(
    database: str, planes: Planes, plane: SetWiseDataPlane
) -> None:
    """Maintenance asks for ten thousand logs, nearly all of them read to their ends."""
    logs = [planes.log("a", "b") for _ in range(3)]
    for log in logs:
        planes.send(log, b"1", b"2")
        planes.drain(log, "a")
        planes.plane.skip_all(log, "b")
        planes.settles_at(log, "a", 0)
        plane.terminate_segment(log)
    query(
        database,
        "CREATE OR REPLACE FUNCTION embedded.backlog(log_name text, of_subscription text) RETURNS bigint LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE 'messages of %% are counted', log_name; END $$",
    )

    assert all(one.is_read_to_end for one in plane.describe_logs(logs).values())
