"""The broker's answers about one topic, as 4.2.4 gives them, and the parts of a report that they tell."""

from __future__ import annotations

from typing import Any

import pytest

from controller.dataplane.base import CursorReport
from controller.dataplane.pulsar import topic_requests
from controller.dataplane.pulsar.admin import Answer, Ask
from controller.domain.errors import DataPlaneUnavailable
from controller.domain.log_origin import LogOrigin

ASK = Ask("GET", "persistent/t/n/x", "describe x")
ORIGIN = LogOrigin("token", 3, (), (1, 2))


def answer(document: object, status: int = 200) -> Answer:
    return Answer(status, document, "broker:8080", {})


def internal(
    last: str,
    *ledgers: tuple[int, int],
    added: int = 0,
    number: int = 0,
    marks: tuple[str, ...] = (),
    properties: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Internal statistics, with cursors at these places; the last one has the properties."""
    cursors = {
        f"cursor {at}": {"markDeletePosition": mark, "properties": {}} for at, mark in enumerate(marks)
    }
    if properties is not None:
        cursors["pulsar.dedup"] = {"markDeletePosition": "5:-1", "properties": properties}
    return {
        "state": "LedgerOpened",
        "lastConfirmedEntry": last,
        "numberOfEntries": number,
        "entriesAddedCounter": added,
        "ledgers": [{"ledgerId": ledger, "entries": entries} for ledger, entries in ledgers],
        "cursors": cursors,
    }


UNUSED = {
    "fresh": internal("5:-1", (5, 0)),
    "with subscriptions": internal("9:-1", (9, 0), marks=("9:-1", "9:-1"), properties={}),
    "terminated and loaded anew": internal("5:-1", marks=("5:-1",)),
    "loaded anew": internal("8:-1", (8, 0), marks=("8:-1",)),
}
USED = {
    "unread": internal("9:2", (9, 0), added=3, number=3, marks=("9:-1",)),
    "loaded anew": internal("14:1", (12, 5), (14, 2), (15, 0), number=7, marks=("15:-1",)),
    "removed": internal("28:1", (29, 0), marks=("29:-1",)),
    "removed in an earlier ledger": internal("29:-1", (29, 0), added=7, marks=("29:-1",)),
    "terminated in a later ledger": internal("19:-1", (12, 5), (14, 2), number=7, marks=("19:-1",)),
    "removed, loaded twice, with deduplication": internal("51:-1", (51, 0), properties={"producer": 6}),
    "a cursor behind an entry": internal("5:-1", (5, 0), marks=("4:6",)),
    "an entry in a ledger alone": internal("5:-1", (4, 1), (5, 0)),
}


@pytest.mark.parametrize(
    ("seen", "is_used"),
    [*((seen, False) for seen in UNUSED.values()), *((seen, True) for seen in USED.values())],
    ids=[*UNUSED, *USED],
)
def test_a_topic_is_used_if_there_is_any_trace_of_a_message(seen: Any, is_used: bool) -> None:
    assert topic_requests.has_carried_messages(ASK, answer(seen)) is is_used


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        {},
        {**UNUSED["fresh"], "cursors": None},
        {**UNUSED["fresh"], "lastConfirmedEntry": None},
        {**UNUSED["fresh"], "ledgers": [None]},
        *(
            {name: value for name, value in UNUSED["fresh"].items() if name != left_out}
            for left_out in (
                "lastConfirmedEntry",
                "numberOfEntries",
                "entriesAddedCounter",
                "ledgers",
                "cursors",
            )
        ),
    ],
)
def test_an_answer_that_leaves_something_open_does_not_count_as_unused(document: object) -> None:
    with pytest.raises(DataPlaneUnavailable, match="lacks the requested data"):
        topic_requests.has_carried_messages(ASK, answer(document))


@pytest.mark.parametrize(
    ("kind", "is_queue"),
    [
        ({"type": "Shared"}, True),
        ({"type": "Exclusive"}, False),
        ({"type": "Failover"}, False),
        ({"type": "Key_Shared"}, False),
        ({"type": "None"}, None),
        ({"type": ""}, None),
        ({"type": None}, None),
        ({}, None),
    ],
)
def test_the_type_of_a_subscription_tells_a_queue(kind: dict[str, str], is_queue: bool | None) -> None:
    document = {
        "subscriptions": {
            "s": {"msgBacklog": 3, "isDurable": True, **kind},
            "reader-1": {"msgBacklog": 3, "isDurable": False, "type": "Exclusive"},
            "__compaction": {"msgBacklog": 3, "isDurable": True, "type": "Exclusive"},
        }
    }

    assert topic_requests.cursors(ASK, answer(document)) == {"s": CursorReport(3, is_queue)}


@pytest.mark.parametrize("one", [{}, {"msgBacklog": None}, {"msgBacklog": "many"}])
def test_a_subscription_without_a_backlog_is_no_answer(one: dict[str, object]) -> None:
    with pytest.raises(DataPlaneUnavailable, match="lacks the requested data"):
        topic_requests.cursors(ASK, answer({"subscriptions": {"s": one}}))


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        (answer({**ORIGIN.to_properties(), "team": "billing"}), ORIGIN),
        (answer({"team": "billing"}), None),
        (answer({}), None),
        (answer(None, 204), None),
        (answer({"reason": "no such call"}, 404), None),
    ],
)
def test_the_properties_tell_the_origin(given: Answer, origin: LogOrigin | None) -> None:
    assert topic_requests.origin(ASK, given) == origin


def test_properties_that_are_no_map_are_no_answer() -> None:
    with pytest.raises(DataPlaneUnavailable, match="lacks the requested data"):
        topic_requests.origin(ASK, answer(["team"]))


def test_a_topic_is_created_with_its_origin_in_the_same_request() -> None:
    assert topic_requests.create_topic("persistent://t/n/x", ORIGIN).body == ORIGIN.to_properties()
    assert topic_requests.create_topic("persistent://t/n/x", None).body is None
