"""The order certificate, judgement by judgement: each fault is seen where it is, and what is allowed is let pass."""

from __future__ import annotations

from array import array

import pytest

from controller.client.history import Event, Record
from controller.client.history_check import FAULTS, Kind, Owner, Verdict, check


def records_of(*lines: str) -> list[Record]:
    """One record a line, ten nanoseconds apart: `OWNER event number [key [producer]]`.

    An owner is consumer/attachment, of segment 0 and bucket 1; `-` for a producer. A seek is `- seeking` and `- sought`.
    """
    return [_record(10 * (at + 1), *line.split()) for at, line in enumerate(lines)]


def _record(
    at_ns: int, owner: str, event: str, number: str = "", key: str = "k", producer: str = "p"
) -> Record:
    if not number:
        return Record(at_ns, Event(event))
    consumer, _, attachment = owner.partition("/")
    where = () if owner == "-" else (consumer, "0", "1", attachment)
    return Record(at_ns, Event(event), producer, key, int(number), *where)


def sent(*numbers: int) -> list[str]:
    return [f"- sent {number}" for number in numbers]


def delivered(*numbers: int, owner: str = "c/1") -> list[str]:
    return [f"{owner} delivered {number}" for number in numbers]


def worked_off(*numbers: int, owner: str = "c/1") -> list[str]:
    """Handed out, worked on and acknowledged, one after the other."""
    events = ("delivered", "begun", "ended", "acknowledged")
    return [f"{owner} {event} {number}" for number in numbers for event in events]


def faulty_numbers(verdict: Verdict) -> dict[Kind, list[int]]:
    """Numbers of the messages of each fault."""
    return {kind: [number for _, _, number in verdict.of(kind)] for kind in FAULTS if verdict.counts[kind]}


def test_a_faithful_run_is_clean_and_its_evidence_is_counted() -> None:
    verdict = check(records_of(*sent(0, 1, 2), *worked_off(0, 1), *delivered(2)))

    assert verdict.is_clean
    assert verdict.exactly_once
    assert (verdict.sent, verdict.delivered, verdict.redelivered) == (3, 3, 0)
    assert (verdict.ended, verdict.acknowledged) == (2, 2)
    assert verdict.examples == ()


def test_nothing_at_all_is_clean() -> None:
    verdict = check([])

    assert verdict.is_clean
    assert (verdict.sent, verdict.delivered) == (0, 0)


FAILED = [*sent(0, 1), *delivered(0, 1), "c/1 begun 0", "c/1 failed 0"]
BEGUN_BY_A = [*sent(0), *delivered(0, owner="a/1"), "a/1 begun 0"]
ENDED_BY_B = [*delivered(0, owner="b/1"), "b/1 begun 0", "b/1 ended 0", "a/1 acknowledged 0"]
LEGAL = {
    "a rewind after the owner was killed": [
        *delivered(0, 1, 2), "c/1 begun 0", "c/1 ended 0", "c/1 acknowledged 0", "c/1 begun 1",
        *worked_off(1, 2, owner="d/1"),
    ],
    "a rewind of the reader, within its attachment": [*delivered(0, 1), *worked_off(0, 1, 2)],
    "a rewind below where the attachment began": [
        *delivered(0, 1), *delivered(1, owner="d/1"), *delivered(0, 1, 2, owner="d/1"),
    ],
    "a rewind that leaves out what is acknowledged": [
        *delivered(0, 1, 2), "c/1 acknowledged 1", *delivered(0, 2, owner="d/1"),
    ],
    "an attachment that begins anywhere": [*worked_off(0, 1), *worked_off(2, owner="d/1")],
    "a consumer that has the key again": [
        *worked_off(0), *worked_off(1, owner="d/1"), *worked_off(2, owner="c/2"),
    ],
    "work again on what had ended once, before its predecessor has ended again": [
        "c/1 delivered 0", "c/1 begun 0", "c/1 ended 0", "c/1 delivered 1", "c/1 begun 1", "c/1 ended 1",
        *delivered(0, 1, owner="d/1"), "d/1 begun 0", "d/1 begun 1", "c/1 delivered 7 other",
    ],
    "two producers of one key, mingled": [
        "- sent 0 k q", "- sent 1 k q", *delivered(0), "c/1 delivered 0 k q", "c/1 delivered 1 k q", *delivered(1),
    ],
    "work on a message while one of another producer waits": [
        "- sent 0 k q", "c/1 delivered 0 k q", *worked_off(0), "c/1 begun 0 k q", "c/1 ended 0 k q",
    ],
    "two keys in two hands": ["c/1 delivered 0 j", "c/1 begun 0 j", *worked_off(0, owner="d/1"), "c/1 ended 0 j"],
    "a number that was never stored": [*delivered(0, 1, 2, 4)],
    "all again after a seek": [*worked_off(0, 1), "- seeking", "- sought", *worked_off(0, 1, 2, owner="c/2")],
    "all again before whoever sought knows that it is done": [
        *worked_off(0, 1), "- seeking", *worked_off(0, 1, owner="c/2"), "- sought", *worked_off(2, owner="c/2"),
    ],
    "an acknowledgement while a seek goes on": [
        *delivered(0, 1), "- seeking", "c/1 acknowledged 1", "- sought", *delivered(0, 1, owner="c/2"),
    ],
    "a seek whose asker died and another's after it": [
        *worked_off(0), "- seeking", "- seeking", "- sought", *worked_off(0, owner="c/2"),
    ],
    "work that failed, done again before its successor begins": [
        *FAILED, "c/1 begun 0", "c/1 ended 0", "c/1 begun 1", "c/1 ended 1",
    ],
    "work that failed is in nobody's hands": [*BEGUN_BY_A, "a/1 failed 0", *ENDED_BY_B],
    "a seek whose asker died": [*worked_off(0), "- seeking", *worked_off(0, owner="c/2"), *worked_off(0, owner="c/3")],
}  # fmt: skip


@pytest.mark.parametrize("lines", LEGAL.values(), ids=LEGAL.keys())
def test_what_is_legal_is_clean(lines: list[str]) -> None:
    verdict = check(records_of(*lines))

    assert faulty_numbers(verdict) == {}, verdict


FAULTY: dict[str, tuple[list[str], dict[Kind, list[int]]]] = {
    "never delivered": ([*sent(0, 1, 2), *delivered(0, 1)], {Kind.LOST: [2]}),
    "delivered again after its acknowledgement": (
        [*worked_off(0, 1), *delivered(1, owner="d/1")],
        {Kind.DUPLICATED: [1]},
    ),
    "delivered again to the one that acknowledged it": (
        [*worked_off(0), *delivered(0)],
        {Kind.DUPLICATED: [0]},
    ),
    "delivered again after its acknowledgement, before a seek": (
        [*worked_off(0), *delivered(0, owner="d/1"), "- seeking", "- sought"],
        {Kind.DUPLICATED: [0]},
    ),
    "delivered again after it was acknowledged after a seek": (
        [*worked_off(0), "- seeking", "- sought", *worked_off(0, owner="d/1"), *delivered(0, owner="e/1")],
        {Kind.DUPLICATED: [0]},
    ),
    "delivered the first time behind a later one": (
        [*delivered(1), *delivered(0, owner="d/1")],
        {Kind.OVERTAKEN: [0]},
    ),
    "delivered again behind a later one of the same pass": (
        [*delivered(0, 1, 2), *delivered(0, 2, 1, owner="d/1")],
        {Kind.OVERTAKEN: [1]},
    ),
    "begun before its predecessor has ended": (
        [*delivered(0, 1), "c/1 begun 0", "c/1 begun 1", "c/1 ended 0", "c/1 ended 1"],
        {Kind.OVERTAKEN: [1]},
    ),
    "begun while its predecessor was never worked on": (
        [*delivered(0, 1), "c/1 begun 1", "c/1 ended 1"],
        {Kind.OVERTAKEN: [1]},
    ),
    "begun after the work on its predecessor was cut off": (
        [*delivered(0, 1), "c/1 begun 0", "d/1 delivered 1", "d/1 begun 1"],
        {Kind.OVERTAKEN: [1]},
    ),
    "gone over and never delivered": (
        [*sent(0, 1, 2), *delivered(0, 2)],
        {Kind.LOST: [1], Kind.GAP: [1]},
    ),
    "gone over and delivered later": ([*delivered(0, 2, 1)], {Kind.OVERTAKEN: [1], Kind.GAP: [1]}),
    "gone over once in a rewind": (
        [*sent(1), *delivered(0, 2), *delivered(0, 2)],
        {Kind.LOST: [1], Kind.GAP: [1, 1]},
    ),
    "worked on by two": (
        [
            *delivered(0),
            "c/1 begun 0",
            *delivered(0, owner="d/1"),
            "d/1 begun 0",
            "c/1 ended 0",
            "d/1 ended 0",
        ],
        {Kind.TWO_OWNERS: [0]},
    ),
    "worked on by two, of two producers": (
        ["c/1 delivered 0", "c/1 begun 0", "d/1 delivered 0 k q", "d/1 begun 0 k q", "c/1 ended 0"],
        {Kind.TWO_OWNERS: [0]},
    ),
    "worked on in two attachments of one consumer": (
        [*delivered(0), "c/1 begun 0", *delivered(0, owner="c/2"), "c/2 begun 0", "c/1 ended 0"],
        {Kind.TWO_OWNERS: [0]},
    ),
    "never ended by one that lived on": (
        [*delivered(0), "c/1 begun 0", *delivered(0, owner="d/1"), "d/1 begun 0", "c/1 delivered 0 other"],
        {Kind.TWO_OWNERS: [0]},
    ),
    "begun before its predecessor, whose work failed, is done again": (
        [*FAILED, "c/1 begun 1", "c/1 ended 1", "c/1 begun 0", "c/1 ended 0"],
        {Kind.OVERTAKEN: [1]},
    ),
    "worked on by two, the first of which has not failed": (
        [*BEGUN_BY_A, *ENDED_BY_B],
        {Kind.TWO_OWNERS: [0]},
    ),
    "delivered to one that had been followed": (
        [*delivered(0), *delivered(1, owner="d/1"), *delivered(2)],
        {Kind.TWO_OWNERS: [2]},
    ),
}


@pytest.mark.parametrize(("lines", "faults"), FAULTY.values(), ids=FAULTY.keys())
def test_what_is_wrong_is_named(lines: list[str], faults: dict[Kind, list[int]]) -> None:
    verdict = check(records_of(*lines))

    assert faulty_numbers(verdict) == faults, verdict
    assert not verdict.is_clean


def test_order_and_completeness_are_asked_for_apart() -> None:
    twice = check(records_of(*worked_off(0), *delivered(0, owner="d/1")))
    again = check(records_of(*delivered(0), *delivered(0, owner="d/1")))

    assert (twice.in_order_and_complete, twice.is_clean) == (True, False)
    assert (again.is_clean, again.exactly_once, again.redelivered) == (True, False, 1)
    for lines in (sent(0), delivered(1, 0), [*sent(1), *delivered(0, 2)]):
        assert not check(records_of(*lines)).in_order_and_complete


def test_what_was_never_acknowledged_is_lost_on_demand_only() -> None:
    records = records_of(*sent(0, 1), *worked_off(0), *delivered(1), "c/1 delivered 2")

    assert check(records).is_clean
    assert faulty_numbers(check(records, demand_acknowledged=True)) == {Kind.LOST: [1]}


def test_what_no_producer_knows_of_is_no_fault() -> None:
    verdict = check(records_of(*sent(0), *worked_off(0, 1)))

    assert verdict.of(Kind.UNCONFIRMED) == (("p", "k", 1),)
    assert verdict.exactly_once
    assert verdict.sent == 1


def test_time_and_not_the_order_of_the_files_counts() -> None:
    records = records_of(*sent(0, 1), *delivered(0), *delivered(1, owner="d/1"))

    assert check(reversed(records)).is_clean


def test_records_of_one_instant_keep_the_order_of_their_file() -> None:
    at_once = [one._replace(at_ns=7) for one in records_of(*worked_off(0, 1, 2))]

    assert check(at_once).is_clean


def test_an_example_says_which_message_where_when_and_why() -> None:
    verdict = check(records_of(*delivered(1), "c/1 acknowledged 1", *delivered(1, owner="d/2")))

    [example] = [one for one in verdict.examples if one.kind in FAULTS]
    assert (example.kind, example.producer, example.key, example.number) == (Kind.DUPLICATED, "p", "k", 1)
    assert (example.owner, example.at_ns) == (Owner("d", "0", "1", "2"), 30)
    assert example.why == "delivered again after it was acknowledged"
    assert example.why in str(verdict)
    assert example.document()["attachment"] == "2"


def test_examples_are_bounded_and_counts_are_not() -> None:
    verdict = check(records_of(*sent(*range(40))), examples=3)

    assert verdict.counts[Kind.LOST] == 40
    assert len(verdict.examples) == 3
    assert check(records_of(*sent(0)), examples=0).examples == ()


def test_a_large_history_is_judged_whole() -> None:
    """More than fits one piece of anything inside; one message of it is wrong."""
    keys, numbers = 1000, 50
    records: list[Record] = []
    for number in range(numbers):
        for key in range(keys):
            at_ns = 10 * (number * keys + key)
            message = ("p", f"k{key}", number)
            records.append(Record(at_ns, Event.SENT, *message))
            records += [
                Record(at_ns + after, event, *message, "c", "0", str(key % 8), "1")
                for after, event in enumerate(
                    (Event.DELIVERED, Event.BEGUN, Event.ENDED, Event.ACKNOWLEDGED), 1
                )
            ]
    assert len(records) == 5 * keys * numbers == 250_000
    assert check(records).exactly_once

    wrong = records[5 * (20 * keys + 777) + 1]
    verdict = check([*records, wrong._replace(at_ns=wrong.at_ns + 8)])

    assert faulty_numbers(verdict) == {Kind.DUPLICATED: [20]}
    assert verdict.of(Kind.DUPLICATED) == (("p", "k777", 20),)


def test_numbers_may_be_as_large_as_the_file_allows() -> None:
    largest = 10**18 - 1
    verdict = check(records_of(*sent(0, largest), *worked_off(0, largest)))

    assert verdict.exactly_once
    assert array("q", [largest])[0] == largest
