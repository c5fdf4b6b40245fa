"""What operations, the reconciler and the collector rely on, call by call, on every data plane."""

from __future__ import annotations

import contextlib

import pytest

from controller.dataplane.base import LogState
from controller.domain.errors import InvalidInput, NotFound, SegmentNotFound
from controller.domain.hash_range import HashRange
from controller.domain.segment import segment_descriptor
from tests.support.planes import Planes

pytestmark = pytest.mark.integration


class TestSegments:
    def test_a_created_log_is_open_and_has_its_subscriptions(self, planes: Planes) -> None:
        log = planes.log("b", "a")

        assert planes.plane.segment_state(log) is LogState.OPEN
        assert sorted(planes.plane.list_subscriptions(log)) == ["a", "b"]

    def test_creating_it_again_keeps_messages_and_positions_and_adds_what_is_missing(
        self, planes: Planes
    ) -> None:
        log = planes.log("old")
        planes.send(log, b"1", b"2")
        assert planes.drain(log, "old") == [b"1", b"2"]

        planes.plane.create_segment(log, ["old", "new"])

        assert planes.plane.backlog(log, "old") == 0
        assert planes.plane.backlog(log, "new") == 2

    def test_creating_a_terminated_log_again_does_not_open_it(self, planes: Planes) -> None:
        log = planes.log()
        planes.plane.terminate_segment(log)

        planes.plane.create_segment(log, ["late"])

        assert planes.plane.segment_state(log) is LogState.TERMINATED
        assert list(planes.plane.list_subscriptions(log)) == ["late"]

    def test_a_log_that_was_never_created_is_missing(self, planes: Planes) -> None:
        log = planes.plane.backing_topic(planes.topic(), "0000-ffff-0")

        assert planes.plane.segment_state(log) is LogState.MISSING
        assert list(planes.plane.list_subscriptions(log)) == []
        assert planes.plane.backlog(log, "any") is None
        assert dict(planes.plane.sample([log])) == {}

    def test_terminating_twice_gives_the_same_last_position(self, planes: Planes) -> None:
        log = planes.filled_log(b"1", b"2")

        first = planes.plane.terminate_segment(log)

        assert first != ""
        assert planes.plane.terminate_segment(log) == first
        assert planes.plane.segment_state(log) is LogState.TERMINATED

    def test_the_last_position_of_a_longer_log_is_another_one(self, planes: Planes) -> None:
        empty, full = planes.log(), planes.log()
        planes.send(full, b"1")

        assert planes.plane.terminate_segment(empty) != planes.plane.terminate_segment(full)

    def test_terminating_a_missing_log_is_refused_for_good(self, planes: Planes) -> None:
        log = planes.plane.backing_topic(planes.topic(), "0000-ffff-0")

        with pytest.raises(SegmentNotFound, match="0000-ffff-0"):
            planes.plane.terminate_segment(log)

    def test_deleting_removes_log_and_subscriptions_and_may_be_repeated(self, planes: Planes) -> None:
        log = planes.filled_log(b"1")

        planes.plane.delete_segment(log)
        planes.plane.delete_segment(log)

        assert planes.plane.segment_state(log) is LogState.MISSING
        assert planes.plane.backlog(log, "s") is None

    def test_a_log_created_anew_under_an_old_name_is_empty_and_open(self, planes: Planes) -> None:
        log = planes.filled_log(b"old")
        planes.plane.terminate_segment(log)
        planes.plane.delete_segment(log)

        planes.plane.create_segment(log, ["s"])
        planes.send(log, b"new")

        assert planes.drain(log, "s") == [b"new"]

    def test_a_topic_lists_its_own_logs_only(self, planes: Planes) -> None:
        """Orphans included; neighbours whose names begin alike, or lie below, are other topics.

        A plane may refuse a name that lies below another; it may not mix the two up.
        """
        topic = planes.topic()
        parts = [segment_descriptor(r, i) for i, r in enumerate(HashRange(0, 65535).divide(3))]
        mine = [planes.log(topic=topic, descriptor=part) for part in parts]
        planes.log(topic=f"{topic}-2")
        planes.log(topic=f"{topic}-segment-0000-ffff-0")
        with contextlib.suppress(InvalidInput):
            planes.log(topic=f"{topic}/0000-ffff-0")

        assert list(planes.plane.list_segments(topic)) == sorted(mine)
        planes.plane.delete_segment(mine[0])
        assert list(planes.plane.list_segments(topic)) == sorted(mine[1:])
        assert list(planes.plane.list_segments(planes.topic())) == []

    @pytest.mark.parametrize(
        "name", ["o'reilly", 'a"b', "100%", "semi;colon", "größe", "日本", "back\\slash", "a_b"]
    )
    def test_odd_names_are_just_names(self, planes: Planes, name: str) -> None:
        topic = f"{planes.topic()}{name}"
        log = planes.log(name, topic=topic)
        planes.send(log, b"1")

        assert list(planes.plane.list_segments(topic)) == [log]
        assert list(planes.plane.list_subscriptions(log)) == [name]
        planes.reader(log, name, owner="gone")  # who is taken over from by the next one
        assert planes.drain(log, name) == [b"1"]

    @pytest.mark.parametrize("topic", ["orders", "persistent://t/n/orders", ""])
    def test_only_a_scalable_topic_has_backing_topics(self, planes: Planes, topic: str) -> None:
        with pytest.raises(InvalidInput, match="topic://"):
            planes.plane.backing_topic(topic, "0000-ffff-0")


class TestSubscriptions:
    def test_a_new_subscription_starts_at_the_earliest_message(self, planes: Planes) -> None:
        log = planes.log("first")
        planes.send(log, b"1", b"2")
        planes.plane.create_subscription(log, "second")

        assert planes.drain(log, "second") == [b"1", b"2"]

    def test_it_can_be_made_on_a_terminated_log(self, planes: Planes) -> None:
        log = planes.log()
        planes.send(log, b"1")
        planes.plane.terminate_segment(log)
        planes.plane.create_subscription(log, "late")

        assert planes.drain(log, "late") == [b"1"]

    def test_creating_it_again_keeps_its_position(self, planes: Planes) -> None:
        log = planes.filled_log(b"1")
        planes.drain(log, "s")

        planes.plane.create_subscription(log, "s")

        assert planes.plane.backlog(log, "s") == 0

    def test_it_cannot_be_made_on_a_missing_log(self, planes: Planes) -> None:
        with pytest.raises(SegmentNotFound):
            planes.plane.create_subscription(planes.plane.backing_topic(planes.topic(), "0000-ffff-0"), "s")

    def test_deleting_it_leaves_the_others_alone_and_may_be_repeated(self, planes: Planes) -> None:
        log = planes.log("gone", "kept")
        planes.send(log, b"1")

        planes.plane.delete_subscription(log, "gone")
        planes.plane.delete_subscription(log, "gone")
        planes.plane.delete_subscription(planes.plane.backing_topic(planes.topic(), "0000-ffff-0"), "gone")

        assert list(planes.plane.list_subscriptions(log)) == ["kept"]
        assert planes.plane.backlog(log, "gone") is None
        assert planes.drain(log, "kept") == [b"1"]

    def test_the_backlog_is_what_is_not_acknowledged(self, planes: Planes) -> None:
        log = planes.log("s")
        for payload in (b"%d" % i for i in range(10)):
            planes.send(log, payload)
        reader = planes.reader(log, "s")
        found = planes.read(reader, 10)
        assert planes.plane.backlog(log, "s") == 10

        reader.acknowledge(found[3].position)

        planes.settles_at(log, "s", 6)

    def test_messages_of_a_batch_count_one_by_one(self, planes: Planes) -> None:
        log = planes.log("s")
        planes.send(log, *(b"%d" % i for i in range(10)))

        assert planes.plane.backlog(log, "s") == 10

    def test_skipping_acknowledges_everything_there_is(self, planes: Planes) -> None:
        log = planes.filled_log(b"1", b"2")
        planes.plane.skip_all(log, "s")
        planes.send(log, b"3")

        assert planes.drain(log, "s") == [b"3"]

    def test_seeking_goes_to_the_first_message_at_or_after_an_instant(self, planes: Planes) -> None:
        log = planes.log("s")
        for payload in (b"1", b"2", b"3"):
            planes.send(log, payload)
        found = planes.read(planes.reader(log, "s"), 3)

        for instant in (m.published_at_ms for m in found):
            planes.plane.seek(log, "s", instant)
            at_or_after = [m.payload for m in found if m.published_at_ms >= instant]
            assert planes.drain(log, "s") == at_or_after

    def test_seeking_before_the_beginning_and_beyond_the_end(self, planes: Planes) -> None:
        log = planes.filled_log(b"1", b"2")
        assert planes.drain(log, "s") == [b"1", b"2"]

        planes.plane.seek(log, "s", 0)
        assert planes.plane.backlog(log, "s") == 2
        planes.plane.seek(log, "s", 4_000_000_000_000)
        assert planes.plane.backlog(log, "s") == 0

    def test_seeking_an_empty_log_changes_nothing(self, planes: Planes) -> None:
        log = planes.log("s")
        planes.plane.seek(log, "s", 1)

        assert planes.plane.backlog(log, "s") == 0

    def test_moving_a_cursor_that_is_not_there_is_refused(self, planes: Planes) -> None:
        log = planes.log()
        missing = planes.plane.backing_topic(planes.topic(), "0000-ffff-0")

        for target in (log, missing):
            with pytest.raises(NotFound):
                planes.plane.seek(target, "nobody", 0)
            with pytest.raises(NotFound):
                planes.plane.skip_all(target, "nobody")
