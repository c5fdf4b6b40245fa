"""Ranges on the hash ring: bounds, halving, cutting, joining, text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput, InvalidRange
from controller.domain.hash_range import FULL_RANGE, RING_SIZE, HashRange, parse_hash
from tests.unit.domain.strategies import cut_points, hash_ranges, segment_hashes


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 65536), (6, 5), (70000, 70001)])
def test_a_range_off_the_ring_is_refused_by_its_values(start: int, end: int) -> None:
    with pytest.raises(InvalidRange, match=f"{start}..{end} is not on the ring"):
        HashRange(start, end)


@pytest.mark.parametrize(
    ("whole", "low", "high"),
    [
        (FULL_RANGE, HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)),
        (HashRange(10, 14), HashRange(10, 12), HashRange(13, 14)),
    ],
    ids=["the full ring", "an odd width, whose low half is one larger"],
)
def test_known_halves(whole: HashRange, low: HashRange, high: HashRange) -> None:
    assert whole.halves() == (low, high)


def test_a_range_of_one_hash_cannot_be_halved() -> None:
    with pytest.raises(InvalidRange, match="0007-0007 covers one hash"):
        HashRange(7, 7).halves()


@given(hash_ranges(min_width=2))
def test_the_halves_join_to_the_whole_either_way_round(whole: HashRange) -> None:
    low, high = whole.halves()

    assert low.join(high) == high.join(low) == whole
    assert 0 <= low.width - high.width <= 1


@given(st.data(), hash_ranges(min_width=2))
def test_pieces_tile_the_range_and_begin_at_the_cut_points(data: st.DataObject, whole: HashRange) -> None:
    points = data.draw(cut_points(whole))

    pieces = whole.cut_many(points)

    assert [piece.start for piece in pieces] == [whole.start, *points]
    assert [piece.end + 1 for piece in pieces] == [*points, whole.end + 1]


@pytest.mark.parametrize("at", [9, 10, 21, -4])
def test_a_cut_point_that_leaves_a_side_empty_is_refused(at: int) -> None:
    with pytest.raises(InvalidRange, match=f"cut point {at:#06x} does not divide"):
        HashRange(10, 20).cut(at)


@pytest.mark.parametrize("points", [[15, 15], [15, 12]])
def test_cut_points_must_ascend(points: list[int]) -> None:
    with pytest.raises(InvalidRange):
        HashRange(10, 20).cut_many(points)


def test_no_cut_points_keep_the_range_whole() -> None:
    assert HashRange(10, 20).cut_many([]) == (HashRange(10, 20),)


def test_dividing_by_three_leaves_the_remainder_to_the_last_as_in_pulsar() -> None:
    assert [piece.width for piece in FULL_RANGE.divide(3)] == [21845, 21845, 21846]


@given(hash_ranges(), st.integers(1, 300))
def test_division_gives_equal_widths_but_for_the_last(whole: HashRange, parts: int) -> None:
    if parts > whole.width:
        with pytest.raises(InvalidRange, match=f"into {parts} parts"):
            whole.divide(parts)
    else:
        *equal, last = (piece.width for piece in whole.divide(parts))
        assert set(equal) <= {whole.width // parts}
        assert sum(equal) + last == whole.width


@given(hash_ranges(min_width=2))
def test_two_equal_parts_are_the_halves(whole: HashRange) -> None:
    assert whole.cut_many(whole.equal_cuts(2)) == whole.halves()


@given(hash_ranges(min_width=4))
def test_four_equal_parts_are_the_halves_of_the_halves(whole: HashRange) -> None:
    low, high = whole.halves()

    assert whole.cut_many(whole.equal_cuts(4)) == (*low.halves(), *high.halves())


@given(hash_ranges(min_width=2), st.integers(2, 50))
def test_equal_cuts_differ_by_at_most_one_hash(whole: HashRange, parts: int) -> None:
    parts = min(parts, whole.width)

    widths = [piece.width for piece in whole.cut_many(whole.equal_cuts(parts))]

    assert len(widths) == parts
    assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HashRange(0, 99), HashRange(65000, 65535)),
        (HashRange(65000, 65535), HashRange(0, 99)),
        (HashRange(3, 3), HashRange(3, 3)),
    ],
    ids=["the ring does not wrap", "nor the other way round", "a range and itself"],
)
def test_ranges_that_are_not_adjacent(one: HashRange, other: HashRange) -> None:
    assert not one.is_adjacent_to(other)


@given(hash_ranges(), hash_ranges())
def test_joining_works_exactly_for_neighbours(a: HashRange, b: HashRange) -> None:
    if a.is_adjacent_to(b):
        assert not a.overlaps(b)
        assert a.join(b).width == a.width + b.width
    else:
        with pytest.raises(InvalidRange, match="not adjacent"):
            a.join(b)


@given(hash_ranges(), hash_ranges(), segment_hashes)
def test_overlap_is_a_hash_in_common(a: HashRange, b: HashRange, hash_value: int) -> None:
    if a.contains(hash_value) and b.contains(hash_value):
        assert a.overlaps(b)
    assert a.overlaps(b) == b.overlaps(a) == (max(a.start, b.start) <= min(a.end, b.end))


def test_known_text_form() -> None:
    assert str(HashRange(0x0A0B, 0xF0F0)) == "0a0b-f0f0"


@given(hash_ranges())
def test_text_reads_back(hash_range: HashRange) -> None:
    assert HashRange.parse(str(hash_range)) == hash_range


@pytest.mark.parametrize("text", ["", "0-1", "0A0B-F0F0", "0000-7fff-3", "0000-7fff\n", "7fff-0000"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRange):
        HashRange.parse(text)


def test_ranges_sort_by_start_then_end() -> None:
    assert sorted([HashRange(1, 9), HashRange(0, 9), HashRange(0, 3)]) == [
        HashRange(0, 3),
        HashRange(0, 9),
        HashRange(1, 9),
    ]


def test_the_full_ring_has_as_many_hashes_as_the_ring() -> None:
    assert FULL_RANGE.width == RING_SIZE


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("32768", 0x8000), ("0x8000", 0x8000), ("0Xffff", 0xFFFF), ("0x0001", 1)]
)
def test_a_hash_is_written_in_decimal_or_hexadecimal(text: str, value: int) -> None:
    assert parse_hash(text) == value


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("is not a hash: write decimal", ""),
        ("is not a hash: write decimal", "0b11"),
        ("is not a hash: write decimal", "0o17"),
        ("is not a hash: write decimal", "1_000"),
        ("is not a hash: write decimal", "0x1_0"),
        ("is not a hash: write decimal", " 7"),
        ("is not a hash: write decimal", "7\n"),
        ("is not a hash: write decimal", "+7"),
        ("is not a hash: write decimal", "010"),
        ("is not a hash: write decimal", "8000h"),
        ("is not a hash: write decimal", "١٢"),
        ("is not a hash: write decimal", "²"),
        ("is not a hash: write decimal", "9" * 5_000),
        ("is not on the ring", "-1"),
        ("is not on the ring", "-0"),
        ("is not on the ring", "-0x0"),
        ("is not on the ring", "65536"),
        ("is not on the ring", "0x10000"),
    ],
)
def test_a_text_that_is_no_hash_of_the_ring_is_refused(message: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_hash(text)
