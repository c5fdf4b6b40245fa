"""Calls about several logs at once, on every data plane that takes them: each log fares as if it were alone."""

from __future__ import annotations

import pytest

from controller.dataplane.base import LogState, SetWiseDataPlane
from controller.domain.errors import SegmentTerminated
from tests.support.planes import Planes

pytestmark = pytest.mark.integration


class TestTerminateSegments:
    def test_each_answers_its_last_position_and_a_missing_one_nothing(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        empty, full, (missing,) = planes.log("s"), planes.log("s"), planes.missing_logs(1)
        planes.send(full, b"1")

        positions = plane.terminate_segments([empty, full, missing])

        assert positions == {log: plane.terminate_segment(log) for log in (empty, full)}
        assert positions[empty] != positions[full]
        assert plane.terminate_segments([empty, full]) == positions
        assert plane.segment_state(missing) is LogState.MISSING

    def test_what_was_answered_for_takes_no_more(self, planes: Planes, plane: SetWiseDataPlane) -> None:
        logs = [planes.log("s"), planes.log("s")]

        plane.terminate_segments(logs)

        for log in logs:
            with pytest.raises(SegmentTerminated):
                planes.send(log, b"late")
            assert plane.segment_state(log) is LogState.TERMINATED


class TestSubscriptionsOf:
    def test_those_of_each_log_and_nothing_of_one_without(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        two, none, (missing,) = planes.log("b", "a"), planes.log(), planes.missing_logs(1)

        found = plane.subscriptions_of([two, none, missing])

        assert {name: list(subscriptions) for name, subscriptions in found.items()} == {two: ["a", "b"]}


class TestListSegmentsOf:
    def test_each_topic_has_its_own_and_one_without_none(
        self, planes: Planes, plane: SetWiseDataPlane
    ) -> None:
        one, other, empty = (planes.topic() for _ in range(3))
        logs = [plane.backing_topic(one, "0000-7fff-1"), plane.backing_topic(one, "8000-ffff-0")]
        foreign = plane.backing_topic(other, "0000-ffff-0")
        for log in (*logs, foreign):
            plane.create_segment(log, [])

        found = plane.list_segments_of([one, other, empty])

        assert {topic: list(names) for topic, names in found.items()} == {
            one: sorted(logs),
            other: [foreign],
            empty: [],
        }
