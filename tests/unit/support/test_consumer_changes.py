"""Which duplicates of a run with standard consumers a death or a join explains."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.client.history import Event, Record
from controller.client.history_check import check
from tests.support.consumer_changes import BROKER_KEEPS_NS, FETCHED_NS, ConsumerChanges
from tests.support.stock_clients import Break, breaks

SECOND = 10**9
NOW = time.monotonic_ns()
SUBSCRIBING = "[io] INFO  ServerCnx - [/127.0.0.1] Subscribing on topic persistent://a/b/orders-segment-0000-ffff-3 / billing. consumerId: 9"
REMOVING = (
    "[io] INFO  Dispatcher - Removing consumer Consumer{subscription=PersistentSubscription"
    "{topic=persistent://a/b/orders-segment-0000-ffff-3, name=billing}, consumerId=9}"
)


def run(*, first: str = "3", again: str = "3", after_ns: int = SECOND) -> list[Record]:
    """The records of a message that was acknowledged now, and delivered again `after_ns` later. Segments of both deliveries."""
    message = ("shop", "key-1", 0)
    return [
        Record(NOW - 2, Event.SENT, *message),
        Record(NOW - 1, Event.DELIVERED, *message, "one", first, "", "a"),
        Record(NOW, Event.ACKNOWLEDGED, *message, "one", first, "", "a"),
        Record(NOW + after_ns, Event.DELIVERED, *message, "two", again, "", "b"),
    ]


def changes(log: Path, *lines: str, at_ns: int = NOW) -> ConsumerChanges:
    """What a broker's log tells whose lines were written at `at_ns`."""
    seconds = (at_ns + time.time_ns() - time.monotonic_ns()) / SECOND
    at = datetime.fromtimestamp(seconds, UTC).astimezone().replace(tzinfo=None)
    told = at.isoformat(timespec="milliseconds").replace(".", ",")
    log.write_text("".join(f"{told} {line}\n" for line in lines))
    return ConsumerChanges("topic://a/b/orders", "billing", log)


def is_explained(found: ConsumerChanges, records: list[Record]) -> bool:
    return found.unexplained(check(records), records) == []


@pytest.mark.parametrize(
    ("lines", "records"),
    [([SUBSCRIBING], run()), ([REMOVING], run()), ([], run(again="4"))],
    ids=["a consumer came", "a consumer went", "the message was sent to two segments"],
)
def test_a_duplicate_is_explained(tmp_path: Path, lines: list[str], records: list[Record]) -> None:
    assert is_explained(changes(tmp_path / "log", *lines), records)


@pytest.mark.parametrize(
    ("line", "at_ns"),
    [
        ("nothing", NOW),
        (SUBSCRIBING.replace("ffff-3", "ffff-4"), NOW),
        (SUBSCRIBING.replace("billing", "audit"), NOW),
        (SUBSCRIBING.replace("orders", "stock"), NOW),
        (SUBSCRIBING, NOW - 2 * FETCHED_NS),
        (SUBSCRIBING, NOW + 2 * SECOND),
    ],
    ids=[
        "no change",
        "another segment",
        "another subscription",
        "another topic",
        "long before",
        "long after",
    ],
)
def test_other_changes_and_those_long_before_or_after_explain_nothing(
    tmp_path: Path, line: str, at_ns: int
) -> None:
    assert not is_explained(changes(tmp_path / "log", line, at_ns=at_ns), run())


def test_a_message_that_comes_again_long_after_its_acknowledgement_is_explained_by_a_stop_only(
    tmp_path: Path,
) -> None:
    found, late = changes(tmp_path / "log", SUBSCRIBING), run(after_ns=2 * FETCHED_NS)
    assert not is_explained(found, late)
    found.pauses.append((NOW, NOW + 2 * FETCHED_NS))
    assert is_explained(found, late)


@pytest.mark.parametrize(("killed_at", "explains"), [(SECOND, True), (BROKER_KEEPS_NS + SECOND, False)])
def test_a_broker_forgets_the_acknowledgements_of_its_last_minute(
    tmp_path: Path, killed_at: int, *, explains: bool
) -> None:
    found = changes(tmp_path / "log")
    found.broker_kills.append(NOW + killed_at)
    assert is_explained(found, run(after_ns=2 * BROKER_KEEPS_NS)) is explains


OPENED = "2026-11-27T18:05:31.546781Z [info     ] gate opened                    module=keeper segment_id=3 subscription=billing topic=t\n"


def break_of(segment: str = "3", predecessor: str = "3") -> list[Break]:
    """A break: the second message of a key is delivered before the first."""
    return breaks(
        [
            Record(NOW, Event.DELIVERED, "shop", "key-1", 1, "one", segment, "", "a"),
            Record(NOW + SECOND, Event.DELIVERED, "shop", "key-1", 0, "two", predecessor, "", "b"),
            Record(NOW + 2 * SECOND, Event.DELIVERED, "shop", "key-1", 1, "two", segment, "", "b"),
        ]
    )


def opened_at(log: Path, at_ns: int) -> Path:
    """The log of a worker that opened the gate of segment 3."""
    at = datetime.fromtimestamp((at_ns + time.time_ns() - time.monotonic_ns()) / SECOND, UTC)
    log.write_text(OPENED.replace("2026-11-27T18:05:31.546781", at.replace(tzinfo=None).isoformat()))
    return log


def test_a_break_has_the_first_deliveries_of_both_messages() -> None:
    [(message, predecessor)] = break_of()
    assert (message.number, message.at_ns) == (1, NOW)
    assert (predecessor.number, predecessor.at_ns) == (0, NOW + SECOND)


@pytest.mark.parametrize(
    ("broken", "line", "opened_ns", "is_of_broker"),
    [
        (break_of(), REMOVING, -60 * SECOND, True),
        (break_of(), "nothing", -60 * SECOND, False),
        (break_of("3", "2"), REMOVING, -60 * SECOND, False),
        (break_of(), REMOVING, -2 * SECOND, False),
        (break_of(), REMOVING, 2 * SECOND, False),
    ],
    ids=["consumers changed", "no change", "two segments", "just opened", "closed"],
)
def test_a_broker_makes_breaks_within_a_segment_whose_consumers_change_long_after_its_gate_was_opened(
    tmp_path: Path, broken: list[Break], line: str, opened_ns: int, *, is_of_broker: bool
) -> None:
    log = opened_at(tmp_path / "w1.log", NOW + opened_ns)
    at_gates = changes(tmp_path / "log", line, at_ns=NOW - SECOND).breaks_at_gates(broken, [log])
    assert at_gates == ([] if is_of_broker else broken)
