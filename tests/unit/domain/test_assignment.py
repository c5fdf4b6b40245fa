"""Who reads what: the drain barrier, fairness, few moves, determinism, sharing by buckets, and Pulsar's own answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.assignment import Assignment, SegmentBucket, assign
from controller.domain.drain_barrier import candidates
from controller.domain.entry_buckets import bucket_ranges, owners, ownership_units
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.layout import SegmentLayout
from controller.domain.segment import Segment
from tests.support.consumer_histories import BucketMoves, history, play
from tests.support.least_moves import least_moves, moves
from tests.unit.domain.strategies import consumer_names, layouts_with_drained

# 0 -> 1, 2 and 1 -> 3, 4: the case of apache/pulsar#26274.
CHAIN = SegmentLayout.initial(1, now=0).split(0, 1).split(1, 2)

Drained = tuple[SegmentLayout, frozenset[int]]
Owned = tuple[SegmentLayout, frozenset[int], frozenset[str], dict[SegmentBucket, str]]


def _ids(shares: Assignment) -> dict[str, list[int]]:
    """The segments of each consumer, each once."""
    return {name: list(dict.fromkeys(unit.segment_id for unit in share)) for name, share in shares.items()}


def _units(*segments: Segment) -> list[SegmentBucket]:
    return [
        SegmentBucket(s.segment_id, bucket) for s in segments for bucket in bucket_ranges(s.bucket_splits)
    ]


def _owners(shares: Assignment) -> dict[SegmentBucket, str]:
    return {unit: name for name, share in shares.items() for unit in share}


def _descends_from(layout: SegmentLayout, segment_id: int) -> set[int]:
    parents = [i for i in layout.segments[segment_id].parent_ids if i in layout.segments]
    return set(parents).union(*(_descends_from(layout, i) for i in parents))


@st.composite
def _owned(draw: st.DrawFn, *, max_segments: int = 100, max_consumers: int = 12) -> Owned:
    """A topic in which anybody owns anything: whole segments or single buckets, of parents too, gone consumers too."""
    layout, drained = draw(layouts_with_drained().filter(lambda c: len(candidates(*c)) <= max_segments))
    names = draw(st.frozensets(st.sampled_from([f"c{i}" for i in range(max_consumers)]), min_size=1))
    anybody = st.sampled_from([*sorted(names), "gone"])
    held: dict[SegmentBucket, str] = {}
    for segment in layout.segments.values():
        units = _units(segment)
        how = draw(st.sampled_from(["nobody", "one", "some"]))
        if how == "one":
            held |= dict.fromkeys(units, draw(anybody))
        elif how == "some":
            held |= draw(st.dictionaries(st.sampled_from(units), anybody))
    return layout, drained, names, held


# Order: what may be delivered


@given(_owned(), st.booleans(), st.booleans())
def test_a_segment_is_handed_out_only_when_all_its_ancestors_are_drained(
    case: Owned, share_buckets: bool, strict_pulsar: bool
) -> None:
    layout, drained, consumers, held = case

    shares = assign(
        layout, drained, consumers, held, share_buckets=share_buckets, strict_pulsar=strict_pulsar
    )
    for unit in _owners(shares):
        assert _descends_from(layout, unit.segment_id) <= drained
        assert layout.segments[unit.segment_id].is_active or unit.segment_id not in drained


# Each bucket once, and fair shares


@given(_owned(), st.booleans(), st.booleans(), st.booleans())
def test_every_bucket_that_may_be_read_has_exactly_one_owner(
    case: Owned, share_buckets: bool, parents_block: bool, strict_pulsar: bool
) -> None:
    layout, drained, consumers, held = case

    shares = assign(
        layout,
        drained,
        consumers,
        held,
        share_buckets=share_buckets,
        parents_block=parents_block,
        strict_pulsar=strict_pulsar,
    )

    delivered = Counter(unit for share in shares.values() for unit in share)
    assert delivered == Counter(_units(*candidates(layout, drained, parents_block=parents_block)))
    assert set(shares) == consumers


@given(_owned(), st.booleans())
def test_each_share_is_sorted_by_range_id_and_bucket(case: Owned, share_buckets: bool) -> None:
    layout, drained, consumers, held = case

    for share in assign(layout, drained, consumers, held, share_buckets=share_buckets).values():
        assert list(share) == sorted(
            share, key=lambda u: (layout.segments[u.segment_id].hash_range, u.segment_id, u.bucket)
        )


@given(_owned(), st.booleans())
def test_whole_segments_are_shared_out_equally(case: Owned, strict_pulsar: bool) -> None:
    layout, drained, consumers, held = case

    shares = assign(layout, drained, consumers, held, strict_pulsar=strict_pulsar)

    ids = _ids(shares)
    sizes = [len(share) for share in ids.values()]
    assert max(sizes) - min(sizes) <= 1
    for name, share in shares.items():
        assert len(share) == sum(layout.segments[i].bucket_count for i in ids[name])


@given(_owned(max_segments=4), st.integers(0, 30), st.booleans())
def test_surplus_consumers_share_segments_equally_up_to_the_bucket_counts(
    case: Owned, surplus: int, strict_pulsar: bool
) -> None:
    layout, drained, named, held = case
    ready = candidates(layout, drained)
    consumers = [*named, *(f"more-{i}" for i in range(max(0, len(ready) + 1 + surplus - len(named))))]

    shares = assign(layout, drained, consumers, held, share_buckets=True, strict_pulsar=strict_pulsar)

    ids = _ids(shares)
    readers = Counter(i for share in ids.values() for i in share)
    assert all(len(share) <= 1 for share in ids.values())
    assert sum(readers.values()) == min(len(consumers), sum(s.bucket_count for s in ready))
    for segment in ready:
        number = readers[segment.segment_id]
        assert 1 <= number <= segment.bucket_count
        assert number == segment.bucket_count or number >= max(readers.values()) - 1
        sizes = {len(shares[name]) for name, share in ids.items() if share == [segment.segment_id]}
        assert max(sizes) - min(sizes) <= 1


@given(_owned())
def test_sharing_changes_nothing_while_segments_suffice(case: Owned) -> None:
    layout, drained, consumers, held = case

    if len(consumers) <= len(candidates(layout, drained)):
        shared = assign(layout, drained, consumers, held, share_buckets=True)
        assert shared == assign(layout, drained, consumers, held)


def test_nobody_to_read_means_no_shares() -> None:
    assert assign(CHAIN, set(), []) == {}
    assert assign(CHAIN, set(), [], share_buckets=True) == {}
    assert assign(CHAIN, set(), [], strict_pulsar=True) == {}


def test_without_sharing_surplus_consumers_idle() -> None:
    layout = SegmentLayout.initial(1, bucket_budget=4, now=0)

    assert assign(layout, set(), ["a", "b", "c"]) == {"a": tuple(_units(*layout.active)), "b": (), "c": ()}


@pytest.mark.parametrize(("consumers", "idle"), [("abcd", 0), ("abcde", 1), ("abcdefg", 3)])
@pytest.mark.parametrize("strict_pulsar", [True, False])
def test_more_consumers_than_buckets_leave_the_last_ones_idle(
    consumers: str, idle: int, strict_pulsar: bool
) -> None:
    layout = SegmentLayout.initial(2, bucket_budget=4, now=0)

    shares = assign(layout, set(), consumers, share_buckets=True, strict_pulsar=strict_pulsar)

    assert [name for name in sorted(shares) if not shares[name]] == list(consumers)[len(consumers) - idle :]


# The same answer everywhere


@given(st.data(), _owned(), st.booleans(), st.booleans(), st.booleans())
def test_the_order_of_the_input_plays_no_part(
    data: st.DataObject, case: Owned, share_buckets: bool, parents_block: bool, strict_pulsar: bool
) -> None:
    layout, drained, consumers, held = case
    rows = data.draw(st.permutations(list(layout.segments.values())))
    shuffled = SegmentLayout.from_segments(layout.epoch, layout.next_segment_id, rows)
    answer = partial(
        assign, share_buckets=share_buckets, parents_block=parents_block, strict_pulsar=strict_pulsar
    )

    assert answer(
        shuffled,
        data.draw(st.permutations(sorted(drained))),
        data.draw(st.permutations(sorted(consumers))),
        dict(data.draw(st.permutations(sorted(held.items())))),
    ) == answer(layout, drained, consumers, held)


@given(_owned(), st.booleans())
def test_who_has_a_fair_assignment_keeps_it(case: Owned, share_buckets: bool) -> None:
    layout, drained, consumers, held = case
    shares = assign(layout, drained, consumers, held, share_buckets=share_buckets)

    assert assign(layout, drained, consumers, _owners(shares), share_buckets=share_buckets) == shares


# Few moves


def test_a_join_takes_its_fair_share_and_nothing_else_moves() -> None:
    layout = SegmentLayout.initial(8, now=0)
    before = assign(layout, set(), ["a", "b"])

    after = assign(layout, set(), ["a", "b", "c"], _owners(before))

    assert _ids(before) == {"a": [0, 2, 4, 6], "b": [1, 3, 5, 7]}
    assert sorted(len(share) for share in after.values()) == [2, 3, 3]
    assert set(after["a"]) < set(before["a"])
    assert set(after["b"]) < set(before["b"])


def test_what_somebody_leaves_behind_is_all_that_moves() -> None:
    layout = SegmentLayout.initial(6, now=0)
    before = assign(layout, set(), ["a", "b", "c"])

    after = assign(layout, set(), ["a", "c"], _owners(before))

    assert set(before["a"]) < set(after["a"])
    assert set(before["c"]) < set(after["c"])


def test_a_child_goes_to_the_consumer_of_its_parent() -> None:
    layout = SegmentLayout.initial(4, now=0)
    before = assign(layout, set(), ["a", "b", "c"])
    split = layout.split(2, now=1)  # of c, who had one segment where a had two

    after = assign(split, {2}, ["a", "b", "c"], _owners(before))

    assert _ids(before) == {"a": [0, 3], "b": [1], "c": [2]}
    assert _ids(after) == {"a": [0, 3], "b": [1], "c": [4, 5]}


@pytest.mark.parametrize(
    ("layout", "drained", "owners", "expected"),
    [
        (
            SegmentLayout.initial(3, now=0).split(0, 1).merge(1, 2, 2),  # 3, 4 of 0; 5 of 1 and 2
            {0, 1, 2},
            {3: "a", 4: "a", 1: "b", 2: "gone"},
            {"a": [3, 4], "b": [5]},
        ),
        (
            SegmentLayout.initial(3, now=0).merge(0, 1, 1),  # 3 of 0 and 1
            {0, 1},
            {0: "b", 1: "a", 2: "a"},
            {"a": [2], "b": [3]},
        ),
        (
            SegmentLayout.initial(3, now=0),
            set(),
            {0: "b", 1: "gone", 2: "a"},
            {"a": [2], "b": [0], "c": [1]},
        ),
    ],
    ids=[
        "a merged segment goes to whoever read more of its parents",
        "of parents with equal shares either consumer is as good",
        "a bucket whose owner is gone goes where it helps",
    ],
)
def test_where_a_segment_goes(
    layout: SegmentLayout, drained: set[int], owners: dict[int, str], expected: dict[str, list[int]]
) -> None:
    units = _units(*(layout.segments[i] for i in owners))
    held = dict(zip(units, owners.values(), strict=True))

    assert _ids(assign(layout, drained, [*expected], held)) == expected


REBUCKETED = SegmentLayout.initial(1, bucket_budget=4, now=0).rebucket(0, 8, 1)


def test_while_a_rebucketed_parent_is_undrained_four_of_five_share_it_and_nobody_has_its_child() -> None:
    shares = assign(REBUCKETED, set(), "abcde", share_buckets=True)

    quarters = _units(REBUCKETED.segments[0])
    assert shares == {
        "a": (quarters[0],),
        "b": (quarters[1],),
        "c": (quarters[2],),
        "d": (quarters[3],),
        "e": (),
    }


def test_after_a_rebucket_from_four_to_eight_all_five_consumers_receive_and_one_bucket_moves() -> None:
    before = _owners(assign(REBUCKETED, set(), "abcde", share_buckets=True))

    shares = assign(REBUCKETED, {0}, "abcde", before, share_buckets=True)

    eighths = _units(REBUCKETED.segments[1])
    assert {name: len(share) for name, share in shares.items()} == {"a": 2, "b": 2, "c": 2, "d": 1, "e": 1}
    assert shares["a"] + shares["b"] + shares["c"] == tuple(eighths[:6])
    assert set(shares["d"] + shares["e"]) == set(eighths[6:])
    assert moves(REBUCKETED, before, shares) == 1


@pytest.mark.parametrize("consumers", ["a", "abc", "abcde", "abcdefgh"])
@pytest.mark.parametrize("share_buckets", [True, False])
def test_nobody_is_left_on_a_drained_parent(consumers: str, share_buckets: bool) -> None:
    held = dict(zip(_units(REBUCKETED.segments[0]), "abca", strict=True))

    shares = assign(REBUCKETED, {0}, consumers, held, share_buckets=share_buckets)

    receiving = [name for name, ids in _ids(shares).items() if ids == [1]]
    assert receiving == [name for name, share in shares.items() if share]
    assert len(receiving) == (len(consumers) if share_buckets else 1)


def test_the_reader_that_a_join_adds_goes_where_one_was_missing() -> None:
    layout = SegmentLayout.initial(2, bucket_budget=8, now=0)
    low, high = layout.active
    held = dict(zip(_units(low, high), "aabcddee", strict=True))

    shares = assign(layout, set(), "abcdex", held, share_buckets=True)

    assert moves(layout, held, shares) == 1
    assert _ids(shares) == {"a": [0], "b": [0], "c": [0], "d": [1], "e": [1], "x": [1]}


@given(_owned(max_segments=9, max_consumers=4))
def test_no_fair_assignment_of_whole_segments_moves_less(case: Owned) -> None:
    layout, drained, consumers, held = case
    ready = candidates(layout, drained)

    shares = assign(layout, drained, consumers, held)

    assert moves(layout, held, shares) == least_moves(layout, ready, consumers, held, share_buckets=False)


def _moves_of_the_best(
    layout: SegmentLayout,
    drained: Collection[int],
    consumers: Collection[str],
    held: Mapping[SegmentBucket, str],
) -> int:
    """Every way there is to hand out whole segments, and the fair ones among them."""
    ready = candidates(layout, drained)
    found = []
    for readers in product(sorted(consumers), repeat=len(ready)):
        counts = [readers.count(name) for name in consumers]
        if max(counts) - min(counts) <= 1:
            share: dict[str, tuple[SegmentBucket, ...]] = dict.fromkeys(consumers, ())
            for segment, name in zip(ready, readers, strict=True):
                share[name] += tuple(_units(segment))
            found.append(moves(layout, held, share))
    return min(found)


@given(_owned(max_segments=5, max_consumers=3))
def test_the_judge_of_few_moves_agrees_with_trying_everything(case: Owned) -> None:
    layout, drained, consumers, held = case

    least = least_moves(layout, candidates(layout, drained), consumers, held, share_buckets=False)

    assert least == _moves_of_the_best(layout, drained, consumers, held)


@st.composite
def _owned_in_buckets(draw: st.DrawFn) -> Owned:
    """Up to five buckets in one or two segments, more consumers than segments, and anybody owns anything."""
    layout = SegmentLayout.initial(draw(st.integers(1, 3)), bucket_budget=draw(st.integers(2, 6)), now=0)
    if len(layout.active) > 1 and draw(st.booleans()):
        layout = layout.merge(0, 1, 1)
    elif len(layout.active) == 1:
        layout = draw(
            st.sampled_from([layout.split(0, 1), layout.rebucket(0, layout.active[0].bucket_count - 1, 1)])
        )
    names = [f"c{i}" for i in range(draw(st.integers(len(layout.active) + 1, 4)))]
    anybody = st.sampled_from([*names, "gone"])
    held = draw(st.dictionaries(st.sampled_from(_units(*layout.segments.values())), anybody))
    drained = {i for i, segment in layout.segments.items() if not segment.is_active}
    return layout, frozenset(drained), frozenset(names), held


def _moves_of_the_best_in_buckets(
    layout: SegmentLayout, consumers: Collection[str], held: Mapping[SegmentBucket, str]
) -> int:
    """Every way there is to hand out single buckets, and the fair ones among them."""
    units = _units(*layout.active)
    found = []
    for way in product(sorted(consumers), repeat=len(units)):
        readers: dict[int, Counter[str]] = {segment.segment_id: Counter() for segment in layout.active}
        share: dict[str, tuple[SegmentBucket, ...]] = dict.fromkeys(consumers, ())
        for unit, name in zip(units, way, strict=True):
            readers[unit.segment_id][name] += 1
            share[name] += (unit,)
        if _is_fair(layout, list(readers.values()), len(consumers)):
            found.append(moves(layout, held, share))
    return min(found)


def _is_fair(layout: SegmentLayout, readers: Sequence[Counter[str]], consumers: int) -> bool:
    """Each in one segment; nobody idle while a segment has a bucket more than readers; readers and buckets dealt equally."""
    sizes = [segment.bucket_count for segment in layout.active]
    numbers = [len(here) for here in readers]
    return (
        sum(numbers) == len(set().union(*readers)) == min(consumers, sum(sizes))
        and all(n == size or n >= max(numbers) - 1 for n, size in zip(numbers, sizes, strict=True))
        and all(max(here.values()) - min(here.values()) <= 1 for here in readers)
    )


@given(_owned_in_buckets())
def test_the_judge_of_few_moves_agrees_with_trying_everything_in_shared_segments(case: Owned) -> None:
    layout, drained, consumers, held = case

    least = least_moves(layout, candidates(layout, drained), consumers, held, share_buckets=True)

    assert least == _moves_of_the_best_in_buckets(layout, consumers, held)
    assert least <= moves(layout, held, assign(layout, drained, consumers, held, share_buckets=True))


def test_over_random_histories_shared_segments_move_little_more_than_they_must() -> None:
    found: dict[tuple[str, str], BucketMoves] = {}
    for seed in range(30):
        life = history(Random(seed), 15, max_segments=4, max_consumers=7)
        found = play(life, partial(assign, share_buckets=True), found)

    for (regime, event), moved in found.items():
        if regime == "whole_segments":
            assert moved.moves == moved.least, event
        else:
            assert moved.moves <= 1.1 * moved.least, event


# As Pulsar 5 does it


def test_segments_are_dealt_in_turn_over_sorted_names() -> None:
    layout = SegmentLayout.initial(5, now=0)

    assert _ids(assign(layout, set(), ["c2", "c1"])) == {"c1": [0, 2, 4], "c2": [1, 3]}


@given(_owned())
def test_pulsar_deals_whole_segments_in_turn_whoever_has_them(case: Owned) -> None:
    layout, drained, consumers, held = case
    names, ready = sorted(consumers), candidates(layout, drained)

    assert assign(layout, drained, consumers, held, strict_pulsar=True) == {
        name: tuple(_units(*ready[index :: len(names)])) for index, name in enumerate(names)
    }


@given(layouts_with_drained(), consumer_names)
def test_where_nobody_owns_anything_whole_segments_are_dealt_as_in_pulsar(
    case: Drained, consumers: set[str]
) -> None:
    layout, drained = case

    assert assign(layout, drained, consumers) == assign(layout, drained, consumers, strict_pulsar=True)


@pytest.mark.parametrize(
    ("budget", "consumers", "readers"),
    [
        (8, "abc", ["ab", "c"]),
        (8, "abcd", ["ab", "cd"]),
        (8, "abcdefg", ["abcd", "efg"]),
        (8, "abcdefghij", ["abcd", "efgh"]),
        (2, "abc", ["a", "b"]),
        (12, "abcdefghi", ["abcde", "fghi"]),
    ],
)
def test_pulsar_deals_consecutive_runs_and_its_dispatcher_the_buckets(
    budget: int, consumers: str, readers: list[str]
) -> None:
    layout = SegmentLayout.initial(2, bucket_budget=budget, now=0)
    expected: dict[str, tuple[SegmentBucket, ...]] = dict.fromkeys(consumers, ())
    for segment, run in zip(layout.active, readers, strict=True):
        units = _units(segment)
        for name, indexes in owners(len(units), run).items():
            expected[name] = tuple(units[i] for i in indexes)
    held = dict.fromkeys(_units(*layout.active), "c")

    assert assign(layout, set(), consumers, held, share_buckets=True, strict_pulsar=True) == expected


def test_a_third_consumer_shares_the_first_of_two_segments() -> None:
    layout = SegmentLayout.initial(2, bucket_budget=4, now=0)
    low, high = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)

    for strict_pulsar in (True, False):
        shares = assign(layout, set(), ["a", "b", "c"], share_buckets=True, strict_pulsar=strict_pulsar)
        assert shares == {
            "a": (SegmentBucket(0, low),),
            "b": (SegmentBucket(0, high),),
            "c": (SegmentBucket(1, low), SegmentBucket(1, high)),
        }


def test_three_sharers_of_four_buckets_as_pulsars_dispatcher_deals_them() -> None:
    layout = SegmentLayout.initial(1, bucket_budget=4, now=0)
    shares = assign(layout, set(), "abc", share_buckets=True, strict_pulsar=True)

    assert [len(shares[name]) for name in "abc"] == [1, 1, 2]


def test_a_segment_of_one_bucket_is_owned_by_its_full_range() -> None:
    layout = SegmentLayout.initial(1, bucket_budget=1, now=0)

    assert assign(layout, set(), ["a"]) == {"a": (SegmentBucket(0, FULL_RANGE),)}


# A segment of very many buckets


MANY = SegmentLayout.initial(1, now=0).rebucket(0, 1000, 1)
"""Segment 1 has 1,000 buckets, 15 or 16 in each run."""
RUNS = [SegmentBucket(1, run) for run in ownership_units(MANY.segments[1].bucket_splits)]


@pytest.mark.parametrize("strict_pulsar", [True, False])
@pytest.mark.parametrize(("consumers", "idle"), [(1, 0), (3, 0), (64, 0), (70, 6)])
def test_a_segment_of_many_buckets_is_owned_in_runs_by_64_at_most(
    consumers: int, idle: int, strict_pulsar: bool
) -> None:
    names = [f"c{i:02}" for i in range(consumers)]

    shares = assign(MANY, {0}, names, share_buckets=True, strict_pulsar=strict_pulsar)

    assert sorted(_owners(shares)) == RUNS
    assert [name for name in names if not shares[name]] == names[consumers - idle :]
    sizes = {len(share) for share in shares.values() if share}
    assert max(sizes) - min(sizes) <= 1


def test_a_run_is_at_home_with_whoever_owned_most_of_it_in_other_pieces() -> None:
    """A leader of before gave out each of the 1,000 buckets by itself."""
    buckets = [SegmentBucket(1, one) for one in bucket_ranges(MANY.segments[1].bucket_splits)]
    held = {unit: "b" if at < 500 else "a" for at, unit in enumerate(buckets)} | {buckets[0]: "gone"}

    shares = assign(MANY, {0}, ["a", "b"], held, share_buckets=True)

    assert shares == {"a": tuple(RUNS[32:]), "b": tuple(RUNS[:32])}


def test_many_buckets_of_a_sealed_segment_are_drained_in_runs() -> None:
    layout = MANY.rebucket(1, 4, 2)

    shares = assign(layout, {0}, ["a", "b", "c"], drain_consumers=8)

    assert sorted(_owners(shares)) == RUNS
    assert sorted(len(share) for share in shares.values()) == [21, 21, 22]


# A sealed segment that several drain


@given(_owned(), st.integers(1, 6))
def test_a_sealed_segment_is_drained_by_as_many_as_are_allowed_and_a_second_look_moves_nothing(
    case: Owned, most: int
) -> None:
    layout, drained, consumers, held = case
    ready = candidates(layout, drained)

    shares = assign(layout, drained, consumers, held, share_buckets=True, drain_consumers=most)

    assert _owners(
        assign(layout, drained, consumers, _owners(shares), share_buckets=True, drain_consumers=most)
    ) == (_owners(shares))
    assert sorted(_owners(shares)) == sorted(_units(*ready))
    if len(consumers) <= len(ready):
        for segment in ready:
            readers = {
                name for unit, name in _owners(shares).items() if unit.segment_id == segment.segment_id
            }
            allowed = 1 if segment.is_active else min(most, segment.bucket_count, len(consumers))
            assert len(readers) == allowed


def test_a_sealed_segment_returns_to_one_reader_when_it_is_drained() -> None:
    layout = SegmentLayout.initial(2, bucket_budget=8, now=0).rebucket(0, 8, 1)

    shared = assign(layout, set(), ["a", "b"], share_buckets=True, drain_consumers=4)
    alone = assign(layout, {0}, ["a", "b"], _owners(shared), share_buckets=True, drain_consumers=4)

    assert _ids(shared) == {"a": [0], "b": [0, 1]}
    assert _ids(alone) == {"a": [2], "b": [1]}
    assert [len(share) for share in shared.values()] == [2, 6]
