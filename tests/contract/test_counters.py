"""Counters as the load collector needs them: they rise, restart with the log, and cost one call for many logs."""

from __future__ import annotations

import pytest

from controller.domain.errors import SegmentTerminated
from tests.support.planes import Planes

pytestmark = pytest.mark.integration


def test_they_count_what_went_in_and_out(planes: Planes) -> None:
    log = planes.log("a", "b")
    planes.send(log, b"12345", b"678", key=b"k")
    planes.drain(log, "a")
    planes.drain(log, "b")

    counters = planes.plane.sample([log])[log]
    assert (counters.backing_topic, counters.msg_in, counters.msg_out) == (log, 2, 4)
    assert counters.byte_in >= 8
    assert counters.byte_out == 2 * counters.byte_in
    assert counters.source != ""


def test_they_never_fall_while_the_log_lives(planes: Planes) -> None:
    log = planes.filled_log(b"1", b"2")
    planes.drain(log, "s")
    before = planes.plane.sample([log])[log]

    planes.plane.seek(log, "s", 0)
    planes.plane.delete_subscription(log, "s")
    planes.plane.terminate_segment(log)
    after = planes.plane.sample([log])[log]

    assert (after.msg_in, after.byte_in, after.msg_out, after.byte_out) == (
        before.msg_in,
        before.byte_in,
        before.msg_out,
        before.byte_out,
    )
    assert after.instant_ms >= before.instant_ms


def test_they_restart_with_the_log(planes: Planes) -> None:
    log = planes.filled_log(b"1", b"2")
    planes.plane.delete_segment(log)
    planes.plane.create_segment(log, ["s"])
    planes.send(log, b"1")

    assert planes.plane.sample([log])[log].msg_in == 1


def test_a_refused_append_counts_nothing(planes: Planes) -> None:
    log = planes.log()
    planes.plane.terminate_segment(log)
    with pytest.raises(SegmentTerminated):
        planes.send(log, b"late")

    assert planes.plane.sample([log])[log].msg_in == 0


def test_many_are_sampled_at_once_and_the_missing_are_silent(planes: Planes) -> None:
    logs = [planes.log() for _ in range(3)]
    missing = planes.plane.backing_topic(planes.topic(), "0000-ffff-0")

    assert set(planes.plane.sample([*logs, missing])) == set(logs)
    assert dict(planes.plane.sample([])) == {}
