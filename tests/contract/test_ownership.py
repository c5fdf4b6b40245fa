"""A cursor has one reader at a time, on every data plane, and a stale reader can do no harm."""

from __future__ import annotations

from functools import partial

import pytest

from controller.domain.errors import FencedOut, LostRace, NotFound, SegmentNotFound, SubscriptionNotFound
from tests.support.planes import Planes, payloads

pytestmark = pytest.mark.integration


def test_a_cursor_has_one_reader_at_a_time(planes: Planes) -> None:
    log = planes.log("s")
    first = planes.reader(log, "s", owner="a", live_owners=["a", "b"])
    with pytest.raises(LostRace, match="'a'"):
        planes.reader(log, "s", owner="b", live_owners=["a", "b"])

    first.close()

    planes.reader(log, "s", owner="b", live_owners=["a", "b"])


def test_whoever_takes_over_from_the_dead_cuts_it_off(planes: Planes) -> None:
    """What the dead one left unacknowledged is read again; what it acknowledges too late is refused."""
    log = planes.filled_log(b"1", b"2")
    dead = planes.reader(log, "s", owner="a")
    (first,) = planes.read(dead, 1)

    heir = planes.reader(log, "s", owner="b", live_owners=["b"])

    planes.ends(lambda: dead.acknowledge(first.position), LostRace)
    with pytest.raises(LostRace):
        dead.read(1)
    with pytest.raises(LostRace):
        dead.is_drained()
    dead.close()
    assert payloads(planes.read(heir, 2)) == [b"1", b"2"]
    assert planes.plane.backlog(log, "s") == 2


def test_a_restarted_reader_of_the_same_name_replaces_the_old_one(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    stale = planes.reader(log, "s", owner="a", live_owners=["a"])
    fresh = planes.reader(log, "s", owner="a", live_owners=["a"])

    assert "stale" in str(planes.ends(lambda: stale.read(1), FencedOut))
    assert payloads(planes.read(fresh, 1)) == [b"1"]


def test_moving_the_cursor_cuts_its_reader_off(planes: Planes) -> None:
    log = planes.filled_log(b"1")
    for move in (lambda: planes.plane.seek(log, "s", 0), lambda: planes.plane.skip_all(log, "s")):
        reader = planes.reader(log, "s", owner="a")
        move()
        planes.ends(partial(reader.read, 1), LostRace)


def test_a_deleted_log_is_gone_for_its_reader(planes: Planes) -> None:
    log = planes.log("s")
    reader = planes.reader(log, "s")
    planes.plane.delete_segment(log)

    error = planes.ends(lambda: reader.read(1), NotFound)
    assert isinstance(error, SegmentNotFound | SubscriptionNotFound)
