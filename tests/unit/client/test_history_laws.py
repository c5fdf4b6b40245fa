"""A correct run, whatever happened in it, is clean; the same run with one thing put wrong is not, and for that reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.client.history import Event, Record
from controller.client.history_check import Kind, Verdict, check
from tests.support.ordered_run import BUCKETS, KEYS, PRODUCERS, Named, OrderedRun

DELIVERED, BEGUN, ENDED, ACKNOWLEDGED = Event.DELIVERED, Event.BEGUN, Event.ENDED, Event.ACKNOWLEDGED
SENDS, HAND_OUTS, BEGINS, ENDS, ACKNOWLEDGES, KILLS = 0, 2, 4, 6, 8, 10
_ACTS = 13


def act(which: int, bucket: int = 0, rest: int = 0) -> int:
    """As `OrderedRun.act` reads it."""
    return (rest * BUCKETS + bucket) * _ACTS + which


def send(producer: int, key: int) -> int:
    return act(SENDS, rest=key * len(PRODUCERS) + producer)


A_BUSY_BUCKET = [
    *(send(0, 0) for _ in range(5)), *(send(1, 3) for _ in range(2)),
    *(act(HAND_OUTS) for _ in range(5)), *(act(one) for one in (BEGINS, ENDS, ACKNOWLEDGES, BEGINS, ENDS, BEGINS)),
    act(KILLS), *(send(0, 0) for _ in range(3)),
    *(act(one) for _ in range(10) for one in (HAND_OUTS, BEGINS, ENDS, ACKNOWLEDGES)),
]  # fmt: skip
"""So that there is always something to put wrong: successors, an acknowledgement, an owner cut off and another one."""
RUNS = st.lists(st.integers(0, _ACTS * BUCKETS * len(PRODUCERS) * KEYS * 77 - 1), max_size=150).map(
    lambda chosen: OrderedRun().act_all([*A_BUSY_BUCKET, *chosen]).records
)
Put = Callable[[list[Record]], Iterator[tuple[list[Record], Named]]]


def named(record: Record) -> Named:
    return record.producer, record.key, record.number


def of(records: list[Record], event: Event) -> dict[Named, list[Record]]:
    """The records of an event by message, each in the order of time."""
    found: dict[Named, list[Record]] = defaultdict(list)
    for record in sorted(records):
        if record.event is event:
            found[named(record)].append(record)
    return found


def instants(records: list[Record], event: Event) -> list[int]:
    return [one.at_ns for one in records if one.event is event]


def successors(records: list[Record]) -> Iterator[tuple[Named, Named]]:
    """Each message and the one after it."""
    stored = sorted(of(records, DELIVERED))
    return ((one, next_one) for one, next_one in pairwise(stored) if one[:2] == next_one[:2])


def without(records: list[Record], message: Named, event: Event | None = None) -> list[Record]:
    """Without what consumers wrote of a message."""
    return [
        one
        for one in records
        if named(one) != message or one.event is Event.SENT or event not in (None, one.event)
    ]


def moved(records: list[Record], record: Record, at_ns: int) -> list[Record]:
    return [one._replace(at_ns=at_ns) if one is record else one for one in records]


def lose(records: list[Record]) -> Iterator[tuple[list[Record], Named]]:
    """A message that never arrives."""
    for message in of(records, Event.SENT):
        yield without(records, message), message


def hand_out_what_is_done(records: list[Record]) -> Iterator[tuple[list[Record], Named]]:
    """A message that is acknowledged comes again, and nobody seeks just then."""
    seeks = [*zip(instants(records, Event.SEEKING), instants(records, Event.SOUGHT), strict=True)]
    for message, [first, *_] in of(records, ACKNOWLEDGED).items():
        if not any(begun < first.at_ns < over for begun, over in seeks):
            yield [*records, first._replace(event=DELIVERED, at_ns=first.at_ns + 1)], message


def begin_too_early(records: list[Record]) -> Iterator[tuple[list[Record], Named]]:
    """Work on a message begins while its predecessor is worked on for the first time."""
    begun, ended = of(records, BEGUN), of(records, ENDED)
    for before, message in successors(records):
        yield moved(records, begun[message][0], ended[before][0].at_ns - 1), message


def hand_out_too_early(records: list[Record]) -> Iterator[tuple[list[Record], Named]]:
    """Two messages of a key change places."""
    first = {message: found[0] for message, found in of(records, DELIVERED).items()}
    for before, message in successors(records):
        one, other = first[before], first[message]
        yield moved(moved(records, one, other.at_ns), other, one.at_ns), before


def go_over(records: list[Record]) -> Iterator[tuple[list[Record], Named]]:
    """An attachment leaves a message out that it should have been the first to hand out."""
    hand_outs = of(records, DELIVERED)
    for (before, message), (_, after) in pairwise(successors(records)):
        owners = {hand_outs[which][0][5:] for which in (before, message, after)}
        if before[:2] == after[:2] and len(owners) == 1:
            yield without(records, message), message


def work_beside(records: list[Record]) -> Iterator[tuple[list[Record], Named]]:
    """Somebody else works on the same message in the middle of the work on it."""
    ended = {(named(one), one[5:]): one for one in records if one.event is ENDED}
    for record in records:
        over = ended.get((named(record), record[5:]))
        if record.event is BEGUN and over is not None and over.at_ns > record.at_ns:
            other = record._replace(consumer="intruder", at_ns=over.at_ns - 1)
            yield [*records, other, other._replace(event=ENDED, at_ns=over.at_ns + 1)], named(record)


def wake_up(records: list[Record]) -> Iterator[tuple[list[Record], Named]]:
    """An owner that was followed hands out once more."""
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records):
        if record.event is DELIVERED:
            by_key[record.key].append(record)
    for found in by_key.values():
        for one, other in pairwise(found):
            if one[5:] != other[5:]:
                yield [*records, one._replace(at_ns=other.at_ns + 1)], named(one)


MUTATIONS: list[tuple[Put, Kind]] = [
    (lose, Kind.LOST),
    (hand_out_what_is_done, Kind.DUPLICATED),
    (begin_too_early, Kind.OVERTAKEN),
    (hand_out_too_early, Kind.OVERTAKEN),
    (go_over, Kind.GAP),
    (work_beside, Kind.TWO_OWNERS),
    (wake_up, Kind.TWO_OWNERS),
]


def judged(records: list[Record]) -> Verdict:
    return check(records, examples=10_000)


@given(RUNS)
def test_a_correct_run_is_clean(records: list[Record]) -> None:
    verdict = judged(records)

    assert verdict.is_clean, verdict
    assert verdict.redelivered > 0, "the owner that was killed had something in hand"


@pytest.mark.parametrize(("put_wrong", "kind"), MUTATIONS, ids=[one.__name__ for one, _ in MUTATIONS])
@given(records=RUNS, chosen=st.integers(0, 10_000))
def test_one_thing_put_wrong_is_found(put_wrong: Put, kind: Kind, records: list[Record], chosen: int) -> None:
    wrong = list(put_wrong(records))
    damaged, message = wrong[chosen % len(wrong)]

    verdict = judged(damaged)

    assert message in verdict.of(kind), verdict
    assert not verdict.is_clean


@given(records=RUNS, chosen=st.integers(0, 10_000))
def test_an_acknowledgement_that_is_missing_is_found_where_they_are_demanded(
    records: list[Record], chosen: int
) -> None:
    known = sorted(of(records, ACKNOWLEDGED).keys() & of(records, Event.SENT).keys())
    message = known[chosen % len(known)]
    damaged = without(records, message, ACKNOWLEDGED)

    assert judged(damaged).is_clean
    assert message in check(damaged, demand_acknowledged=True, examples=10_000).of(Kind.LOST)


@given(records=RUNS, order=st.permutations(range(6)))
def test_it_does_not_matter_in_which_order_the_files_are_read(
    records: list[Record], order: list[int]
) -> None:
    writers = sorted({one.consumer or one.producer for one in records})
    read = [
        one
        for at in order
        for one in records
        if at < len(writers) and (one.consumer or one.producer) == writers[at]
    ]

    assert judged(read).counts == judged(records).counts
