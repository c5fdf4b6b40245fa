"""Parts of a cursor by entry bucket, on every data plane: each has one reader and a position of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from controller.dataplane.log_client import LogMessage, LogReader, OutgoingMessage, Ownership
from controller.domain.errors import CleaveError, FencedOut, InvalidInput, LostRace
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.key_hash import key_hash
from tests.support.planes import Planes, payloads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

LOW, HIGH = FULL_RANGE.halves()
QUARTERS = FULL_RANGE.divide(4)
TURNS = ((LOW, b"l0"), (HIGH, b"h0"), (LOW, b"l1"), (HIGH, b"h1"), (LOW, b"l2"), (HIGH, b"h2"))


def filled(planes: Planes, *batches: tuple[HashRange, *tuple[bytes, ...]]) -> str:
    """Create a log with a subscription `s` and these batches, each of one bucket. Return its name."""
    log = planes.log("s")
    for bucket, *batch in batches:
        planes.send_to(log, bucket, *batch)
    return log


def nothing_comes(reader: LogReader) -> None:
    """By now: whatever is on its way was stored before something that has arrived."""
    assert list(reader.read(10)) == []


class TestAppending:
    def test_a_message_outside_the_bucket_is_refused_with_its_whole_batch(self, planes: Planes) -> None:
        log = planes.log("s")
        batch = [OutgoingMessage(b"in", bucket_hash=LOW.end), OutgoingMessage(b"out", bucket_hash=HIGH.start)]

        with pytest.raises(InvalidInput, match=r"0x8000.*0000-7fff"):
            planes.logs.append(log, batch, producer="p", sequence=1, bucket=LOW)

        assert planes.plane.backlog(log, "s") == 0

    def test_a_key_outside_the_bucket_is_refused(self, planes: Planes) -> None:
        log = planes.log("s")
        mine, other = (LOW, HIGH) if LOW.contains(key_hash(b"k").bucket_hash) else (HIGH, LOW)
        batch = [OutgoingMessage(b"1", b"k")]

        with pytest.raises(InvalidInput):
            planes.logs.append(log, batch, producer="p", sequence=1, bucket=other)

        assert planes.logs.append(log, batch, producer="p", sequence=1, bucket=mine) == 1

    def test_a_bucket_hash_beyond_the_ring_is_refused(self, planes: Planes) -> None:
        log = planes.log("s")

        for beyond in (-1, 0x10000):
            batch = [OutgoingMessage(b"1", bucket_hash=beyond)]
            with pytest.raises(InvalidInput):
                planes.logs.append(log, batch, producer="p", sequence=1)

    def test_without_a_bucket_hash_the_low_half_of_the_keys_hash_counts(self, planes: Planes) -> None:
        """And 0 without a key. One batch a message, so that each is in one bucket for certain."""
        log = planes.log("s")
        keys: list[bytes | None] = [None, *(b"key-%d" % n for n in range(20))]
        hashes = [0 if key is None else key_hash(key).bucket_hash for key in keys]
        for number, (key, of_key) in enumerate(zip(keys, hashes, strict=True)):
            bucket = LOW if LOW.contains(of_key) else HIGH
            planes.logs.append(
                log,
                [OutgoingMessage(b"%d" % number, key)],
                producer=f"p{bucket}",
                sequence=number,
                bucket=bucket,
            )

        for bucket in (LOW, HIGH):
            mine = [b"%d" % number for number, of_key in enumerate(hashes) if bucket.contains(of_key)]
            reader = planes.reader(log, "s", bucket=bucket)
            assert payloads(planes.read(reader, len(mine))) == mine
            nothing_comes(reader)


class TestParts:
    def test_readers_of_all_parts_read_each_message_once_and_in_order(self, planes: Planes) -> None:
        log = planes.log("s")
        batches = 15

        def produce(bucket: HashRange) -> None:
            for number in range(batches):
                planes.send_to(
                    log,
                    bucket,
                    b"%s %d a" % (str(bucket).encode(), number),
                    b"%s %d b" % (str(bucket).encode(), number),
                )

        def consume(bucket: HashRange) -> list[LogMessage]:
            reader = planes.reader(log, "s", owner=f"c{bucket}", bucket=bucket)
            found = planes.read(reader, 2 * batches)
            reader.acknowledge(found[-1].position)
            nothing_comes(reader)
            return found

        with ThreadPoolExecutor(2 * len(QUARTERS)) as threads:
            producing = [threads.submit(produce, bucket) for bucket in QUARTERS]
            consuming = [threads.submit(consume, bucket) for bucket in QUARTERS]
            found = [future.result() for future in consuming]
            for future in producing:
                future.result()

        for bucket, mine in zip(QUARTERS, found, strict=True):
            sent = [
                b"%s %d %s" % (str(bucket).encode(), n, half) for n in range(batches) for half in (b"a", b"b")
            ]
            assert payloads(mine) == sent
            assert [m.position for m in mine] == sorted({m.position for m in mine})
        planes.settles_at(log, "s", 0)

    def test_a_part_handed_over_goes_on_where_it_was_and_disturbs_no_other(self, planes: Planes) -> None:
        # A batch of its own for each message: a broker counts a batch whole until all of it is acknowledged.
        log = filled(planes, (LOW, b"l1"), (LOW, b"l2"), (HIGH, b"h1"), (HIGH, b"h2"))
        live = ["a", "b", "c"]
        mine = planes.reader(log, "s", owner="a", live_owners=live, bucket=LOW)
        kept = planes.reader(log, "s", owner="b", live_owners=live, bucket=HIGH)
        (first, _) = planes.read(mine, 2)
        (h1,) = planes.read(kept, 1)
        mine.acknowledge(first.position)
        mine.close()

        heir = planes.reader(log, "s", owner="c", live_owners=live, bucket=LOW)

        assert payloads(planes.read(heir, 1)) == [b"l2"]
        nothing_comes(heir)
        kept.acknowledge(h1.position)
        assert payloads(planes.read(kept, 1)) == [b"h2"]
        planes.settles_at(log, "s", 2)

    def test_acknowledgements_of_one_part_move_no_other(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l1"), (HIGH, b"h1", b"h2"))
        low, high = (planes.reader(log, "s", owner=str(part), bucket=part) for part in (LOW, HIGH))
        found = planes.read(high, 2)
        planes.read(low, 1)

        high.acknowledge(found[-1].position)
        planes.settles_at(log, "s", 1)
        high.close()
        low.close()

        assert payloads(planes.read(planes.reader(log, "s", bucket=LOW), 1)) == [b"l1"]
        nothing_comes(planes.reader(log, "s", bucket=HIGH))

    @pytest.mark.parametrize(("ahead", "behind"), [(LOW, HIGH), (HIGH, LOW)], ids=["low", "high"])
    def test_the_whole_after_parts_reads_what_they_left_in_the_logs_order(
        self, planes: Planes, ahead: HashRange, behind: HashRange
    ) -> None:
        log = filled(planes, *TURNS)
        for part, done in ((ahead, 2), (behind, 0)):
            reader = planes.reader(log, "s", owner=str(part), bucket=part)
            reader.acknowledge(planes.read(reader, 3)[done].position)
            reader.close()
        planes.settles_at(log, "s", 2)

        whole = planes.reader(log, "s")
        found = planes.read(whole, 2)

        assert payloads(found) == ([b"h1", b"h2"] if behind == HIGH else [b"l1", b"l2"])
        nothing_comes(whole)
        whole.acknowledge(found[0].position)
        planes.settles_at(log, "s", 1)
        whole.acknowledge(found[1].position)
        planes.settles_at(log, "s", 0)

    def test_the_whole_after_parts_keeps_the_order_over_them(self, planes: Planes) -> None:
        log = filled(planes, *TURNS)
        for part, done in ((LOW, 2), (HIGH, 1)):
            reader = planes.reader(log, "s", owner=str(part), bucket=part)
            reader.acknowledge(planes.read(reader, done)[-1].position)
            reader.close()
        planes.settles_at(log, "s", 3)

        assert payloads(planes.read(planes.reader(log, "s"), 3)) == [b"h1", b"l2", b"h2"]

    def test_parts_after_the_whole_go_on_where_it_was(self, planes: Planes) -> None:
        log = filled(planes, *TURNS[:4])
        whole = planes.reader(log, "s")
        found = planes.read(whole, 4)
        whole.acknowledge(found[1].position)
        whole.close()

        for part, left in ((HIGH, b"h1"), (LOW, b"l1")):
            reader = planes.reader(log, "s", owner=str(part), bucket=part)
            assert payloads(planes.read(reader, 1)) == [left]
            nothing_comes(reader)

    def test_parts_with_other_bounds_keep_each_position(self, planes: Planes) -> None:
        log = planes.log("s")
        for number in range(2):
            for part in QUARTERS:
                planes.send_to(log, part, b"%s %d" % (str(part).encode(), number))
        for part in (QUARTERS[0], QUARTERS[3]):
            reader = planes.reader(log, "s", owner=str(part), bucket=part)
            reader.acknowledge(planes.read(reader, 1)[-1].position)
            reader.close()

        low = planes.reader(log, "s", owner="a", bucket=LOW)
        high = planes.reader(log, "s", owner="b", bucket=HIGH)

        a, b, c, d = (str(part).encode() for part in QUARTERS)
        assert payloads(planes.read(low, 3)) == [b + b" 0", a + b" 1", b + b" 1"]
        assert payloads(planes.read(high, 3)) == [c + b" 0", c + b" 1", d + b" 1"]

    def test_subscriptions_are_divided_each_on_its_own(self, planes: Planes) -> None:
        log = planes.log("s", "other")
        planes.send_to(log, LOW, b"l")
        planes.send_to(log, HIGH, b"h")
        reader = planes.reader(log, "s", bucket=LOW)
        reader.acknowledge(planes.read(reader, 1)[-1].position)

        planes.settles_at(log, "s", 1)
        assert planes.plane.backlog(log, "other") == 2
        assert planes.drain(log, "other") == [b"l", b"h"]

    def test_what_was_delivered_is_counted_over_all_parts(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"1", b"2"), (HIGH, b"3"))
        for part, count in ((LOW, 2), (HIGH, 1)):
            reader = planes.reader(log, "s", owner=str(part), bucket=part)
            reader.acknowledge(planes.read(reader, count)[-1].position)

        wait_until(lambda: planes.plane.sample([log])[log].msg_out == 3, message="3 messages out")
        planes.plane.delete_subscription(log, "s")
        assert planes.plane.sample([log])[log].msg_out == 3

    def test_a_divided_subscription_is_one_subscription(self, planes: Planes) -> None:
        """Deleted it is gone with all its parts, and a new one of its name begins at the beginning."""
        log = filled(planes, (LOW, b"l"), (HIGH, b"h"))
        stale = planes.reader(log, "s", bucket=HIGH)
        stale.acknowledge(planes.read(stale, 1)[-1].position)
        planes.settles_at(log, "s", 1)
        planes.plane.create_subscription(log, "s")
        assert list(planes.plane.list_subscriptions(log)) == ["s"]
        assert planes.plane.backlog(log, "s") == 1

        planes.plane.delete_subscription(log, "s")
        assert list(planes.plane.list_subscriptions(log)) == []
        planes.plane.create_subscription(log, "s")

        assert planes.plane.backlog(log, "s") == 2
        planes.ends(partial(stale.read, 1), CleaveError)  # type: ignore[type-abstract]
        assert planes.drain(log, "s") == [b"l", b"h"]


class TestOwnership:
    LIVE = ("a", "b", "c")

    def test_a_part_has_one_reader_at_a_time(self, planes: Planes) -> None:
        log = planes.log("s")
        held = planes.reader(log, "s", owner="a", live_owners=self.LIVE, bucket=LOW)

        for wanted in (LOW, QUARTERS[1], HashRange(0x7FFF, 0x8000), None):
            with pytest.raises(LostRace, match="'a'"):
                planes.reader(log, "s", owner="b", live_owners=self.LIVE, bucket=wanted)
        planes.reader(log, "s", owner="b", live_owners=self.LIVE, bucket=HIGH)
        held.close()

        planes.reader(log, "s", owner="c", live_owners=self.LIVE, bucket=LOW)

    def test_who_cannot_have_all_takes_nothing(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l"))
        planes.reader(log, "s", owner="a", live_owners=self.LIVE, bucket=HIGH)

        with pytest.raises(LostRace):
            planes.reader(log, "s", owner="b", live_owners=self.LIVE)

        assert payloads(
            planes.read(planes.reader(log, "s", owner="c", live_owners=self.LIVE, bucket=LOW), 1)
        ) == [b"l"]

    def test_one_owner_reads_several_parts_by_readers_of_their_own(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l"), (HIGH, b"h"))
        low = planes.reader(log, "s", owner="a", live_owners=self.LIVE, bucket=LOW)
        high = planes.reader(log, "s", owner="a", live_owners=self.LIVE, bucket=HIGH)

        assert payloads(planes.read(low, 1)) == [b"l"]
        assert payloads(planes.read(high, 1)) == [b"h"]
        low.close()
        nothing_comes(high)

    def test_a_newer_reader_of_the_same_owner_fences_those_it_overlaps(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l"), (HIGH, b"h"))
        stale = planes.reader(log, "s", owner="a", live_owners=self.LIVE, bucket=LOW)
        other = planes.reader(log, "s", owner="a", live_owners=self.LIVE, bucket=HIGH)
        fresh = planes.reader(log, "s", owner="a", live_owners=self.LIVE, bucket=LOW)

        planes.ends(partial(stale.read, 1), FencedOut)
        assert payloads(planes.read(fresh, 1)) == [b"l"]
        assert payloads(planes.read(other, 1)) == [b"h"]

    def test_whoever_takes_a_part_from_the_dead_cuts_it_off(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l1", b"l2"), (HIGH, b"h1"))
        dead = planes.reader(log, "s", owner="a", bucket=LOW)
        alive = planes.reader(log, "s", owner="b", live_owners=["b"], bucket=HIGH)
        (first,) = planes.read(dead, 1)

        heir = planes.reader(log, "s", owner="c", live_owners=["b", "c"], bucket=LOW)

        planes.ends(partial(dead.acknowledge, first.position), LostRace)
        with pytest.raises(LostRace):
            dead.read(1)
        with pytest.raises(LostRace):
            dead.is_drained()
        dead.close()
        assert payloads(planes.read(heir, 2)) == [b"l1", b"l2"]
        assert payloads(planes.read(alive, 1)) == [b"h1"]
        assert planes.plane.backlog(log, "s") == 3

    def test_a_dead_reader_of_the_whole_loses_all_of_it_with_any_part(self, planes: Planes) -> None:
        """It cannot acknowledge what nobody has taken over yet either."""
        log = filled(planes, (LOW, b"l1"), (HIGH, b"h1"))
        dead = planes.reader(log, "s", owner="a")
        found = planes.read(dead, 2)

        heir = planes.reader(log, "s", owner="b", live_owners=["b", "c"], bucket=HIGH)

        planes.ends(partial(dead.acknowledge, found[-1].position), LostRace)
        assert payloads(planes.read(heir, 1)) == [b"h1"]
        rest = planes.reader(log, "s", owner="c", live_owners=["b", "c"], bucket=LOW)
        assert payloads(planes.read(rest, 1)) == [b"l1"]

    def test_who_comes_by_an_older_assignment_takes_nothing_from_the_newer_owner(
        self, planes: Planes
    ) -> None:
        """It was stopped on its way: the newer owner is not disturbed, whatever part of its range the older one wants."""
        log = filled(planes, (LOW, b"l1", b"l2"))
        newer = planes.reader(log, "s", owner="b", bucket=LOW, ownership=Ownership(2_000_000, 5))
        (first,) = planes.read(newer, 1)

        for wanted, older in ((LOW, Ownership(2_000_000, 4)), (QUARTERS[1], Ownership(1_000_000, 9))):
            with pytest.raises(FencedOut, match=r"b took a part of 's'.* under a newer assignment"):
                planes.reader(log, "s", owner="a", bucket=wanted, ownership=older)

        newer.acknowledge(first.position)
        assert payloads(planes.read(newer, 1)) == [b"l2"]
        planes.reader(
            log, "s", owner="a", bucket=HIGH, ownership=Ownership(2_000_000, 4)
        )  # is another's concern
        heir = planes.reader(log, "s", owner="a", bucket=LOW, ownership=Ownership(3_000_000, 0))
        assert payloads(planes.read(heir, 1)) == [b"l2"]

    def test_moving_the_cursor_moves_all_parts_and_cuts_all_readers_off(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l1"), (LOW, b"l2"), (HIGH, b"h1"))

        def readers() -> list[LogReader]:
            return [
                planes.reader(log, "s", owner=str(part), live_owners=["x"], bucket=part)
                for part in (LOW, HIGH)
            ]

        low, high = readers()
        (l1,) = planes.read(low, 1)
        low.acknowledge(l1.position)
        planes.settles_at(log, "s", 2)

        planes.plane.seek(log, "s", 0)

        for reader in (low, high):
            planes.ends(partial(reader.read, 1), LostRace)
        assert planes.plane.backlog(log, "s") == 3
        low, high = readers()
        assert payloads(planes.read(low, 2)) == [b"l1", b"l2"]
        (h1,) = planes.read(high, 1)

        planes.plane.skip_all(log, "s")

        planes.ends(partial(high.acknowledge, h1.position), LostRace)
        planes.ends(partial(low.read, 1), LostRace)
        planes.settles_at(log, "s", 0)
        for reader in readers():
            nothing_comes(reader)


class TestDrained:
    def test_a_log_is_drained_when_all_its_parts_are(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l"), (HIGH, b"h"))
        low, high = (planes.reader(log, "s", owner=str(part), bucket=part) for part in (LOW, HIGH))
        (l1,), (h1,) = planes.read(low, 1), planes.read(high, 1)
        planes.plane.terminate_segment(log)
        assert not low.is_drained()
        low.acknowledge(l1.position)
        assert not low.is_drained()
        assert not high.is_drained()

        high.acknowledge(h1.position)

        wait_until(lambda: high.is_drained() and low.is_drained(), message="both are told")

    def test_a_part_without_messages_is_drained_at_the_end(self, planes: Planes) -> None:
        log = planes.log("s")
        low, high = (planes.reader(log, "s", owner=str(part), bucket=part) for part in (LOW, HIGH))
        planes.send_to(log, LOW, b"l")
        low.acknowledge(planes.read(low, 1)[-1].position)
        nothing_comes(high)
        assert not high.is_drained()

        planes.plane.terminate_segment(log)

        wait_until(lambda: high.is_drained() and low.is_drained(), message="both are told")

    def test_a_message_in_hand_is_not_drained_by_what_others_do(self, planes: Planes) -> None:
        log = filled(planes, (LOW, b"l"), (HIGH, b"h1", b"h2"))
        planes.plane.terminate_segment(log)
        low, high = (planes.reader(log, "s", owner=str(part), bucket=part) for part in (LOW, HIGH))
        planes.read(low, 1)
        nothing_comes(low)
        high.acknowledge(planes.read(high, 2)[-1].position)
        planes.settles_at(log, "s", 1)

        assert not low.is_drained()
        assert not high.is_drained()
        low.close()
        assert payloads(planes.read(planes.reader(log, "s", bucket=LOW), 1)) == [b"l"]
