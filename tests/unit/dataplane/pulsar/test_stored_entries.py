"""In which order a terminated topic's entries are looked through for a batch in doubt, and when no entry can follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from controller.dataplane.pulsar.admin import AdminCalls, Answer, Ask, Deadline
from controller.dataplane.pulsar.stored_entries import (
    NOWHERE,
    StoredPart,
    is_final,
    last_stored,
    parts_of,
    places_backwards,
    places_forwards,
)
from controller.dataplane.pulsar.topic_requests import demand_complete
from controller.domain.errors import DataPlaneUnavailable

LEDGERS = [{"ledgerId": 3, "entries": 2}, {"ledgerId": 7, "entries": 0}, {"ledgerId": 9, "entries": 5}]


@pytest.mark.parametrize(
    ("last", "behind", "places"),
    [
        pytest.param("9:1", NOWHERE, [(9, 1), (9, 0), (3, 1), (3, 0)], id="all, the last ledger to its end"),
        pytest.param("9:1", (3, 1), [(9, 1), (9, 0)], id="nothing at or before a known place"),
        pytest.param("9:1", (7, -1), [(9, 1), (9, 0)], id="a known end of an empty ledger"),
        pytest.param("9:1", (9, 1), [], id="nothing came after"),
        pytest.param("3:1", NOWHERE, [(3, 1), (3, 0)], id="later ledgers hold nothing yet"),
        pytest.param("9:-1", NOWHERE, [(3, 1), (3, 0)], id="an empty last ledger"),
    ],
)
def test_entries_from_the_last_to_the_first_unknown(
    last: str, behind: tuple[int, int], places: list[tuple[int, int]]
) -> None:
    internal = {"lastConfirmedEntry": last, "ledgers": LEDGERS}

    assert list(places_backwards(internal, behind)) == places


@pytest.mark.parametrize(
    ("last", "places"),
    [
        pytest.param("9:1", [(3, 0), (3, 1), (9, 0), (9, 1)], id="all, in order"),
        pytest.param("3:0", [(3, 0)], id="up to the last one"),
        pytest.param("8:4", [(3, 0), (3, 1)], id="nothing of a ledger that was deleted"),
    ],
)
def test_entries_from_the_first_on(last: str, places: list[tuple[int, int]]) -> None:
    assert list(places_forwards({"lastConfirmedEntry": last, "ledgers": LEDGERS})) == places


@pytest.mark.parametrize(
    ("told", "place"),
    [
        pytest.param("9:1", (9, 1), id="as told"),
        pytest.param("9:-1", (3, 1), id="an empty last ledger"),
        pytest.param("8:4", (8, 4), id="although it was deleted"),
        pytest.param("2:-1", (2, -1), id="no entry"),
    ],
)
def test_the_last_entry_of_a_topic(told: str, place: tuple[int, int]) -> None:
    assert last_stored({"lastConfirmedEntry": told, "ledgers": LEDGERS}) == place


def ledgers(newest: str) -> list[dict[str, object]]:
    older = {
        "ledgerId": 3,
        "metadata": "LedgerMetadata{formatVersion=3, state=CLOSED, length=9, lastEntryId=4}",
    }
    return [{"ledgerId": 9, "metadata": newest}, older]


@pytest.mark.parametrize(
    ("state", "last", "newest", "expected"),
    [
        pytest.param(
            "Terminated", "9:4", "{state=CLOSED, length=9, lastEntryId=4}", True, id="closed with it"
        ),
        pytest.param("Terminated", "9:-1", "{state=CLOSED, length=0, lastEntryId=-1}", True, id="empty"),
        pytest.param("Terminated", "9:4", "{state=OPEN, length=0}", False, id="open: one may be under way"),
        pytest.param("Terminated", "9:4", "{state=IN_RECOVERY, lastEntryId=4}", False, id="being recovered"),
        pytest.param("Terminated", "9:3", "{state=CLOSED, lastEntryId=4}", False, id="one more is stored"),
        pytest.param("Terminated", "3:4", "{state=OPEN, length=0}", False, id="the ledger before is closed"),
        pytest.param("LedgerOpened", "9:4", "{state=CLOSED, lastEntryId=4}", False, id="not terminated"),
        pytest.param("Terminated", "9:4", None, False, id="not told"),
    ],
)
def test_an_end_is_final_when_the_newest_ledger_is_closed_with_the_last_entry(
    state: str, last: str, newest: str, expected: bool
) -> None:
    assert is_final({"state": state, "lastConfirmedEntry": last, "ledgers": ledgers(newest)}) is expected


def test_an_end_is_not_final_without_ledgers() -> None:
    assert not is_final({"state": "Terminated", "lastConfirmedEntry": "9:4", "ledgers": []})


class Broker:
    """Answers each request for an entry with the same headers."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def demand_all(self, asks: Sequence[Ask], _deadline: Deadline) -> list[Answer]:
        return [Answer(200, "", "broker", self._headers)] * len(asks)


def part(headers: Mapping[str, str]) -> StoredPart | None:
    admin = cast(AdminCalls, Broker(headers))
    return parts_of(admin, "persistent://t/n/x", [(7, 3)], Deadline(1.0))[7, 3]


def test_the_headers_say_which_messages_an_entry_contains() -> None:
    named = {"X-Pulsar-producer-name": "p", "X-Pulsar-sequence-id": "40"}

    assert part(named) == StoredPart("p", 41)
    assert part({**named, "X-Pulsar-num-batch-message": "3"}) == StoredPart("p", 43)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"X-Pulsar-producer-name": "p"}, id="no sequence"),
        pytest.param({"X-Pulsar-sequence-id": "first"}, id="a sequence that is no number"),
        pytest.param(
            {"X-Pulsar-sequence-id": "40", "X-Pulsar-num-batch-message": "many"},
            id="a count that is no number",
        ),
    ],
)
def test_an_entry_without_readable_numbers_is_an_error_of_the_data_plane(headers: dict[str, str]) -> None:
    with pytest.raises(DataPlaneUnavailable, match="entry 7:3 does not say which messages it contains"):
        part(headers)


LACKING = "lacking"
"""Stands for a part that the statistics lack."""
COMPLETE: dict[str, Any] = {
    "state": "LedgerOpened",
    "lastConfirmedEntry": "7:1",
    "numberOfEntries": 2,
    "entriesAddedCounter": 2,
    "ledgers": [{"ledgerId": 7, "entries": 0}],
    "cursors": {"s": {"markDeletePosition": "7:0", "readPosition": "7:1"}},
}


def test_complete_internal_statistics_are_accepted() -> None:
    demand_complete("check x", COMPLETE)


@pytest.mark.parametrize(
    "changes",
    [
        *[{part: LACKING} for part in COMPLETE],
        {"lastConfirmedEntry": "7"},
        {"numberOfEntries": None},
        {"entriesAddedCounter": "many"},
        {"ledgers": [{"ledgerId": 7}]},
        {"ledgers": [{"entries": 0}]},
        {"cursors": {"s": {"markDeletePosition": "7:0"}}},
        {"cursors": {"s": {"readPosition": "7:1"}}},
        {"cursors": {"s": COMPLETE["cursors"]["s"] | {"totalNonContiguousDeletedMessagesRange": "many"}}},
    ],
    ids=str,
)
def test_internal_statistics_without_a_part_that_is_read_are_refused(changes: dict[str, Any]) -> None:
    statistics = {part: value for part, value in (COMPLETE | changes).items() if value is not LACKING}
    with pytest.raises(DataPlaneUnavailable, match="check x: the broker's response lacks"):
        demand_complete("check x", statistics)
