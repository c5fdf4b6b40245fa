"""What producers and consumers rely on, on every data plane: order, no loss, one reader, a final fence."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from controller.clock import SystemClock
from controller.dataplane.base import LogState
from controller.dataplane.log_client import Metadata, OutgoingMessage
from controller.domain.errors import (
    DataPlaneTimeout,
    SegmentNotFound,
    SegmentTerminated,
    SubscriptionNotFound,
)
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


class TestAppending:
    def test_messages_come_out_as_they_went_in(self, planes: Planes) -> None:
        log = planes.log("s")
        keyed = [
            OutgoingMessage(bytes(range(256)), b'k\0\xff\\"{}'),
            OutgoingMessage(b"", b""),
            OutgoingMessage(b"x"),
        ]
        before_ms = SystemClock().now_ms()

        assert planes.logs.append(log, keyed, producer="p", sequence=1) == 3

        found = planes.read(planes.reader(log, "s"), 3)
        assert [(m.payload, m.key or None) for m in found] == [(m.payload, m.key or None) for m in keyed]
        assert [m.position for m in found] == sorted({m.position for m in found})
        assert all(a.published_at_ms <= b.published_at_ms for a, b in pairwise(found))
        assert before_ms <= found[0].published_at_ms
        assert found[-1].published_at_ms <= SystemClock().now_ms()

    def test_metadata_comes_out_as_it_went_in(self, planes: Planes) -> None:
        log = planes.log("s")
        sent = [
            OutgoingMessage(
                b"1", b"k", metadata=Metadata((("a", "\u00e4"), ("b", "")), 1_795_230_000_000, True)
            ),
            OutgoingMessage(b"2", b"k"),
            OutgoingMessage(b"3", b"\xff", metadata=Metadata(is_binary_key=True)),
            OutgoingMessage(b"4", metadata=Metadata((("a", "1"),))),
        ]

        planes.logs.append(log, sent, producer="p", sequence=1)

        found = planes.read(planes.reader(log, "s"), 4)
        assert [(m.key, m.metadata) for m in found] == [(m.key, m.metadata) for m in sent]

    def test_an_empty_batch_is_nothing(self, planes: Planes) -> None:
        log = planes.log("s")

        assert planes.logs.append(log, [], producer="p", sequence=1) == 0
        assert planes.plane.backlog(log, "s") == 0

    def test_a_batch_repeated_under_its_number_is_stored_once(self, planes: Planes) -> None:
        log = planes.log("s")
        for sequence, payload in ((1, b"1"), (1, b"1"), (2, b"2"), (1, b"1"), (2, b"2")):
            planes.logs.append(log, [OutgoingMessage(payload)], producer="p", sequence=sequence)
        planes.logs.append(log, [OutgoingMessage(b"q")], producer="q", sequence=1)

        assert planes.drain(log, "s") == [b"1", b"2", b"q"]

    def test_after_termination_an_append_is_refused(self, planes: Planes) -> None:
        log = planes.filled_log(b"1")
        planes.plane.terminate_segment(log)

        with pytest.raises(SegmentTerminated):
            planes.send(log, b"2")
        assert planes.drain(log, "s") == [b"1"]

    def test_a_batch_stored_before_the_fence_is_known_to_be_stored_after_it(self, planes: Planes) -> None:
        """Its answer was lost; sent to the successor as well it would be there twice."""
        log = planes.log("s")
        planes.logs.append(log, [OutgoingMessage(b"1")], producer="p", sequence=1)
        planes.plane.terminate_segment(log)

        assert planes.logs.append(log, [OutgoingMessage(b"1")], producer="p", sequence=1) == 1

    def test_appending_to_a_missing_log_does_not_create_it(self, planes: Planes) -> None:
        log = planes.plane.backing_topic(planes.topic(), "0000-ffff-0")

        with pytest.raises(SegmentNotFound):
            planes.send(log, b"1")
        assert planes.plane.segment_state(log) is LogState.MISSING

    def test_nothing_lands_after_the_fence_and_nothing_acknowledged_is_lost(self, planes: Planes) -> None:
        """Parallel producers while the log is terminated: what was stored is there, in order, without a gap."""
        log = planes.log("s")
        flowing = threading.Barrier(5)

        def produce(producer: str) -> list[bytes]:
            stored: list[bytes] = []
            sequence = 1
            while sequence < 100_000:
                batch = [b"%s-%d-%d" % (producer.encode(), sequence, i) for i in range(7)]
                messages = [OutgoingMessage(payload) for payload in batch]
                try:
                    count = planes.logs.append(log, messages, producer=producer, sequence=sequence)
                except SegmentTerminated:
                    return stored
                except DataPlaneTimeout:
                    continue  # under its number again, as the protocol asks
                stored += batch[:count]
                if sequence == 10:
                    flowing.wait(timeout=30)
                sequence += 1
            raise AssertionError("the fence never fell")

        with ThreadPoolExecutor(4) as threads:
            running = [threads.submit(produce, f"p{i}") for i in range(4)]
            flowing.wait(timeout=30)
            planes.plane.terminate_segment(log)
            at_the_fence = planes.plane.sample([log])[log].msg_in
            stored = [future.result() for future in running]

        found = planes.drain(log, "s")
        assert len(found) == sum(map(len, stored))
        assert at_the_fence >= len(found), "a broker also counts what arrived and was refused"
        for index, own in enumerate(stored):
            assert [p for p in found if p.startswith(b"p%d-" % index)] == own


class TestReading:
    def test_a_reader_never_skips_while_producers_compete(self, planes: Planes) -> None:
        """Offsets become visible in order, so what a reader passed over can never turn up behind it."""
        log = planes.log("s")
        reader = planes.reader(log, "s")
        producers, batches = 4, 40

        def produce(index: int) -> None:
            for _ in range(batches):
                planes.send(log, b"a", b"b", b"c", producer=f"p{index}")

        with ThreadPoolExecutor(producers) as threads:
            running = [threads.submit(produce, index) for index in range(producers)]
            found = planes.read(reader, producers * batches * 3)
            for future in running:
                future.result()

        positions = [m.position for m in found]
        assert positions == sorted(set(positions))
        assert payloads(found) == [b"a", b"b", b"c"] * (producers * batches)
        reader.acknowledge(positions[-1])
        planes.settles_at(log, "s", 0)

    def test_a_read_gives_at_most_what_was_asked_for(self, planes: Planes) -> None:
        log = planes.filled_log(b"1", b"2", b"3")
        reader = planes.reader(log, "s")

        assert payloads(planes.read(reader, 2)) == [b"1", b"2"]
        assert payloads(planes.read(reader, 1)) == [b"3"]
        assert list(reader.read(1)) == []

    def test_the_next_reader_starts_at_the_first_unacknowledged_message(self, planes: Planes) -> None:
        log = planes.filled_log(b"1", b"2", b"3")
        reader = planes.reader(log, "s")
        found = planes.read(reader, 3)
        reader.acknowledge(found[0].position)
        reader.close()

        assert payloads(planes.read(planes.reader(log, "s"), 2)) == [b"2", b"3"]

    def test_acknowledging_never_goes_back(self, planes: Planes) -> None:
        log = planes.filled_log(b"1", b"2", b"3")
        reader = planes.reader(log, "s")
        found = planes.read(reader, 3)

        reader.acknowledge(found[2].position)
        reader.acknowledge(found[0].position)
        planes.settles_at(log, "s", 0)
        reader.close()

        assert planes.drain(log, "s") == []

    def test_subscriptions_do_not_disturb_each_other(self, planes: Planes) -> None:
        log = planes.log("a", "b")
        planes.send(log, b"1", b"2")

        assert planes.drain(log, "a") == [b"1", b"2"]
        assert planes.plane.backlog(log, "b") == 2
        assert planes.drain(log, "b") == [b"1", b"2"]

    def test_a_log_is_drained_when_it_is_closed_and_all_is_acknowledged(self, planes: Planes) -> None:
        log = planes.filled_log(b"1")
        reader = planes.reader(log, "s")
        (message,) = planes.read(reader, 1)
        assert not reader.is_drained()
        planes.plane.terminate_segment(log)
        assert not reader.is_drained()

        reader.acknowledge(message.position)

        assert reader.is_drained()

    def test_an_acknowledged_log_that_is_still_open_is_not_drained(self, planes: Planes) -> None:
        reader = planes.reader(planes.log("s"), "s")

        assert not reader.is_drained()

    def test_arrivals_and_the_end_of_the_log_ring(self, planes: Planes) -> None:
        log = planes.log("s")
        rung = threading.Event()
        reader = planes.logs.open_reader(log, "s", owner="r", live_owners=(), on_arrival=rung.set)
        planes.readers.append(reader)

        def rings_after(act: object) -> None:
            rung.clear()
            act()  # type: ignore[operator]
            wait_until(rung.is_set, message="the callback")

        rings_after(lambda: planes.send(log, b"1"))
        rings_after(lambda: planes.plane.terminate_segment(log))

    def test_reading_what_is_not_there_is_refused(self, planes: Planes) -> None:
        with pytest.raises(SegmentNotFound):
            planes.reader(planes.plane.backing_topic(planes.topic(), "0000-ffff-0"), "s")
        with pytest.raises(SubscriptionNotFound):
            planes.reader(planes.log("s"), "other")
