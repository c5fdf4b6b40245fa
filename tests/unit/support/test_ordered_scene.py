"""What strikes account for in a verdict, and what they do not."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from controller.client.history import Event, Record
from controller.client.history_check import Example, Kind, check
from tests.chaos.ordered_scene import BROKER_KEEPS_SECONDS, SILENT_SECONDS, Disturbances

SECOND = 1_000_000_000


def record(at_ns: int, event: Event, owner: str = "c1") -> Record:
    return Record(at_ns, event, "p", "k", 0, owner, "0", "1", owner)


def twice(acknowledged_at_ns: int) -> list[Record]:
    """A message that comes again ten minutes after it was acknowledged."""
    return [
        record(acknowledged_at_ns - 1, Event.DELIVERED),
        record(acknowledged_at_ns, Event.ACKNOWLEDGED),
        record(acknowledged_at_ns + 600 * SECOND, Event.DELIVERED, "c2"),
    ]


def unexplained(excuses: Disturbances, records: list[Record]) -> list[Example]:
    return excuses.unexplained(check(records), records)


def test_what_a_broker_had_not_written_down_when_it_was_killed_may_come_again() -> None:
    excuses = Disturbances()
    excuses.lost(BROKER_KEEPS_SECONDS)
    now = time.monotonic_ns()

    assert unexplained(excuses, twice(now - 30 * SECOND)) == []
    for acknowledged_at_ns in (now - 90 * SECOND, now + SECOND):
        [found] = unexplained(excuses, twice(acknowledged_at_ns))
        assert found.kind is Kind.DUPLICATED


def test_what_was_on_its_way_when_a_topic_was_loaded_anew_may_come_again(tmp_path: Path) -> None:
    log, at = tmp_path / "pulsar.log", time.strftime("%Y-%m-%dT%H:%M:%S,000")
    log.write_text(
        f"{at} [web] INFO  Base - [null] Unloading topic persistent://a/b/c\n"
        "\tat java.base/java.lang.reflect.Method.invoke(Method.java:569)\n"
    )
    excuses, now = Disturbances(), time.monotonic_ns()
    excuses.unloaded(log)

    assert unexplained(excuses, twice(now - SECOND // 10)) == []
    assert len(unexplained(excuses, twice(now - 5 * SECOND))) == 1


def test_a_key_is_in_two_hands_only_while_one_of_them_was_not_heard() -> None:
    at_once = [
        record(10, Event.DELIVERED), record(11, Event.BEGUN), record(20, Event.DELIVERED, "c2"),
        record(21, Event.BEGUN, "c2"), record(30, Event.ENDED),
    ]  # fmt: skip

    [found] = unexplained(Disturbances(), at_once)
    assert found.kind is Kind.TWO_OWNERS
    assert unexplained(Disturbances(silences=[(5, 40)]), at_once) == []
    assert len(unexplained(Disturbances(silences=[(22, 40)]), at_once)) == 1


def test_a_message_read_before_a_stop_may_be_delivered_after_another_consumer_acknowledged_it() -> None:
    records = [
        record(10, Event.DELIVERED), record(11, Event.BEGUN), record(12, Event.ENDED), record(13, Event.ACKNOWLEDGED),
        record(30, Event.DELIVERED, "c2"),
    ]  # fmt: skip

    assert unexplained(Disturbances(silences=[(5, 40)]), records) == []
    for silence in ((14, 40), (5, 29)):
        [found] = unexplained(Disturbances(silences=[silence]), records)
        assert found.kind is Kind.DUPLICATED


def test_who_was_stopped_for_a_moment_only_has_no_excuse() -> None:
    excuses = Disturbances()
    with ExitStack() as stopped:
        stopped.enter_context(excuses.stopped())

    assert SILENT_SECONDS > 1
    assert excuses.silences == []
