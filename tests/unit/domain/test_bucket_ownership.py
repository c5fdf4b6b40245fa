"""The steps from what is to what is fair: laws over random situations, and the cases by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.assignment import Assignment, SegmentBucket
from controller.domain.bucket_ownership import BucketOwner, OwnershipChanges, owner_changes
from controller.domain.hash_range import FULL_RANGE, HashRange

LOW, HIGH = SegmentBucket(0, HashRange(0, 32767)), SegmentBucket(0, HashRange(32768, 65535))
NAMES = ("a", "b", "c")
BUCKETS = tuple(SegmentBucket(segment, HashRange(0, 65535)) for segment in range(4))


def target(**shares: tuple[SegmentBucket, ...]) -> Assignment:
    return shares


WHOLE = SegmentBucket(0, HashRange(0, 65535))
ELSEWHERE = SegmentBucket(1, HashRange(0, 65535))
NONE: frozenset[SegmentBucket] = frozenset()
STEPS = {
    "a bucket that nobody owns is granted": (
        target(a=(LOW,), b=(HIGH,)),
        (),
        OwnershipChanges({LOW: "a", HIGH: "b"}, {}, NONE, NONE),
    ),
    "an owner that was asked and may keep it is told": (
        target(a=(LOW,)),
        (BucketOwner(LOW, "a", 3, is_asked=True, successor="b"),),
        OwnershipChanges({}, {}, frozenset({LOW}), NONE),
    ),
    "a bucket that is withheld again is asked back for nobody": (
        target(a=()),
        (BucketOwner(LOW, "a", 3),),
        OwnershipChanges({}, {LOW: None}, NONE, NONE),
    ),
    "a piece waits for the owner of the run": (
        target(a=(LOW,), b=(HIGH,)),
        (BucketOwner(WHOLE, "a", 3),),
        OwnershipChanges({}, {WHOLE: None}, NONE, NONE),
    ),
    "a run of another segment waits for nobody": (
        target(a=(LOW,), b=(ELSEWHERE,)),
        (BucketOwner(LOW, "a", 3),),
        OwnershipChanges({ELSEWHERE: "b"}, {}, NONE, NONE),
    ),
}


@pytest.mark.parametrize(("wanted", "owners", "changes"), STEPS.values(), ids=STEPS)
def test_one_step_from_the_owners_to_what_is_wanted(
    wanted: Assignment, owners: tuple[BucketOwner, ...], changes: OwnershipChanges
) -> None:
    assert owner_changes(wanted, owners, consumers=[*wanted]) == changes


def test_an_owner_is_asked_first_and_once() -> None:
    owner = BucketOwner(LOW, "a", 3)
    asked = owner_changes(target(b=(LOW,)), (owner,), consumers="ab")
    assert asked.release_requests == {LOW: "b"}
    assert not asked.granted
    again = BucketOwner(LOW, "a", 3, is_asked=True, successor="b")
    assert not owner_changes(target(b=(LOW,)), (again,), consumers="ab")
    for_another = owner_changes(target(c=(LOW,)), (again,), consumers="abc")
    assert for_another.release_requests == {LOW: "c"}


def test_what_was_let_go_of_goes_to_the_next_even_if_that_is_the_same_one() -> None:
    owner = BucketOwner(LOW, "a", 3, is_asked=True, successor="b")
    for name in "ab":
        found = owner_changes(target(**{name: (LOW,)}), (owner,), consumers="ab", released={LOW})
        assert found.granted == {LOW: name}


@pytest.mark.parametrize(
    "changes",
    [
        OwnershipChanges({LOW: "a"}, {}, frozenset(), frozenset()),
        OwnershipChanges({}, {LOW: None}, frozenset(), frozenset()),
        OwnershipChanges({}, {}, frozenset({LOW}), frozenset()),
        OwnershipChanges({}, {}, frozenset(), frozenset({LOW})),
    ],
)
def test_a_change_of_any_kind_is_to_be_written(changes: OwnershipChanges) -> None:
    assert changes
    assert not OwnershipChanges({}, {}, frozenset(), frozenset())


def test_nobody_waits_for_the_gone_nor_for_what_is_read_to_its_end() -> None:
    owner = BucketOwner(LOW, "gone", 3)
    assert owner_changes(target(b=(LOW,)), (owner,), consumers="b").granted == {LOW: "b"}
    assert owner_changes(target(b=()), (owner,), consumers="b").ended == {LOW}
    finished = BucketOwner(LOW, "a", 3)
    assert owner_changes(target(a=()), (finished,), consumers="a", finished={0}).ended == {LOW}


def test_a_run_waits_for_whoever_owns_a_piece_of_it_the_same_consumer_included() -> None:
    pieces = (BucketOwner(LOW, "a", 3), BucketOwner(HIGH, "gone", 3))

    found = owner_changes(target(a=(WHOLE,)), pieces, consumers="a")
    assert found == OwnershipChanges({}, {LOW: None}, frozenset(), frozenset({HIGH}))

    asked = BucketOwner(LOW, "a", 3, is_asked=True)
    assert not owner_changes(target(a=(WHOLE,)), (asked,), consumers="a")
    let_go = owner_changes(target(a=(WHOLE,)), (asked,), consumers="a", released={LOW})
    assert let_go == OwnershipChanges({WHOLE: "a"}, {}, frozenset(), frozenset({LOW}))


@st.composite
def _cuts(draw: st.DrawFn) -> tuple[SegmentBucket, ...]:
    """Units that tile the ring of segment 0 or 1."""
    points = draw(st.sets(st.sampled_from([100, 200, 32768, 50_000]), max_size=4))
    segment = draw(st.integers(0, 1))
    return tuple(SegmentBucket(segment, one) for one in FULL_RANGE.cut_many(sorted(points)))


@given(
    lives=st.lists(
        st.tuples(st.lists(_cuts(), max_size=3), st.sets(st.sampled_from(NAMES)), st.integers(0, 2**32)),
        min_size=1,
        max_size=8,
    )
)
def test_over_any_history_of_cuts_no_hash_has_two_owners_and_in_the_end_all_is_owned_as_wanted(
    lives: list[tuple[list[tuple[SegmentBucket, ...]], set[str], int]],
) -> None:
    """Each step wants another cut, as leaders of different versions would; some owners let go, and some are gone."""
    owned: dict[SegmentBucket, BucketOwner] = {}
    for generation, (cuts, alive, seed) in enumerate(lives, 1):
        random = Random(seed)
        units = {unit.segment_id: cut for cut in cuts for unit in cut}
        _step(owned, units, alive, generation, {u for u in owned if random.random() < 0.5}, random)
    wanted = {0: _tiles(0, 200), 1: _tiles(1)}
    for generation in range(100, 103):
        let_go = {unit for unit, owner in owned.items() if owner.is_asked}
        _step(owned, wanted, {"a", "b"}, generation, let_go, Random(0))

    assert sorted(owned) == sorted(unit for cut in wanted.values() for unit in cut)


def _tiles(segment_id: int, *points: int) -> tuple[SegmentBucket, ...]:
    return tuple(SegmentBucket(segment_id, one) for one in FULL_RANGE.cut_many(points))


def _step(
    owned: dict[SegmentBucket, BucketOwner],
    units: Mapping[int, tuple[SegmentBucket, ...]],
    alive: set[str],
    generation: int,
    released: set[SegmentBucket],
    random: Random,
) -> None:
    """What a leader's transaction does to the rows; nobody living loses what it has not let go of."""
    names = sorted(alive)
    wanted = {unit: random.choice(names) for cut in units.values() for unit in cut} if names else {}
    assignment = {name: tuple(u for u, n in wanted.items() if n == name) for name in names}
    found = owner_changes(assignment, owned.values(), consumers=alive, released=released)
    for unit in [*found.ended, *(found.granted.keys() & owned.keys())]:
        assert owned[unit].consumer not in alive or unit in released
        del owned[unit]
    for unit, name in found.granted.items():
        assert not [
            one for one in owned if one.segment_id == unit.segment_id and one.bucket.overlaps(unit.bucket)
        ]
        owned[unit] = BucketOwner(unit, name, generation)
    for unit, successor in found.release_requests.items():
        owned[unit] = replace(owned[unit], is_asked=True, successor=successor)


shares = st.dictionaries(st.sampled_from(BUCKETS), st.sampled_from(NAMES))


@given(
    wanted=shares,
    owned=st.dictionaries(st.sampled_from(BUCKETS), st.tuples(st.sampled_from(NAMES), st.booleans())),
    alive=st.sets(st.sampled_from(NAMES)),
    released=st.sets(st.sampled_from(BUCKETS)),
    finished=st.sets(st.integers(0, 3)),
)
def test_each_bucket_takes_one_step_at_most_and_none_is_taken_from_the_living(
    wanted: Mapping[SegmentBucket, str],
    owned: Mapping[SegmentBucket, tuple[str, bool]],
    alive: set[str],
    released: set[SegmentBucket],
    finished: set[int],
) -> None:
    wanted = {bucket: name for bucket, name in wanted.items() if name in alive}
    assignment = {name: tuple(b for b, n in wanted.items() if n == name) for name in alive}
    owners = [BucketOwner(bucket, name, 1, asked) for bucket, (name, asked) in owned.items()]

    found = owner_changes(assignment, owners, consumers=alive, released=released, finished=finished)

    steps = [*found.granted, *found.release_requests, *found.withdrawn_requests, *found.ended]
    assert len(steps) == len(set(steps))
    for bucket, (name, _) in owned.items():
        is_free = name not in alive or bucket in released or bucket.segment_id in finished
        if not is_free and wanted.get(bucket) != name:
            assert bucket not in found.granted
            assert bucket not in found.ended
    for bucket, name in found.granted.items():
        assert wanted[bucket] == name
    after = {**{b: n for b, (n, _) in owned.items() if b not in found.ended}, **found.granted}
    free = [b for b in wanted if b not in owned or owned[b][0] not in alive]
    assert all(after[b] == wanted[b] for b in free)


def test_deferred_moves_are_those_to_another_consumer_in_these_segments() -> None:
    """A bucket that no consumer waits for is released at once, for example because its segment has to wait for its parents again."""
    elsewhere = SegmentBucket(1, LOW.bucket)
    changes = OwnershipChanges({}, {LOW: None, HIGH: "b", elsewhere: "b"}, frozenset(), frozenset())

    assert changes.moves_buckets
    assert changes.without_moves({0}).release_requests == {LOW: None, elsewhere: "b"}
    assert not changes.without_moves({0, 1}).moves_buckets
