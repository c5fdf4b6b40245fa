"""One bundle and the hash that puts topics there."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.ring.bundle import NamespaceBundle, parse_range
from controller.bundles.domain.ring.hashes import LAST_HASH, edge_text, parse_edge, topic_hash
from controller.domain.errors import InvalidInput, InvalidRange
from tests.unit.bundles.domain.strategies import boundaries


def test_the_hash_is_the_crc32_that_brokers_use() -> None:
    """The check value of CRC-32/ISO-HDLC, which is the hash of a topic's complete name."""
    assert zlib.crc32(b"123456789") == 0xCBF43926
    assert topic_hash("persistent://public/default/my-topic") == 0x2BAD45F7


def test_a_short_name_is_hashed_by_its_complete_one() -> None:
    assert topic_hash("my-topic") == 0x2BAD45F7 != zlib.crc32(b"my-topic") == 0xB76CC015


def test_a_bundle_is_written_as_brokers_write_it() -> None:
    bundle = NamespaceBundle("t/n", 0x0A, 0x80000000)

    assert str(bundle) == "t/n/0x0000000a_0x80000000"
    assert bundle.range_text == "0x0000000a_0x80000000"
    assert edge_text(LAST_HASH) == "0xffffffff"


@given(boundaries())
def test_what_is_written_is_read_back(bundles) -> None:
    for bundle in bundles.bundles:
        assert NamespaceBundle.parse(str(bundle)) == bundle
        assert parse_range(bundle.range_text) == (bundle.lower, bundle.upper)
        assert parse_edge(edge_text(bundle.lower)) == bundle.lower


def test_other_spellings_of_the_same_ends_are_read_too() -> None:
    """The proposal of issue 13761 writes 0x00_0x10, some tools capitals."""
    assert NamespaceBundle.parse("t/n/0x00_0X1F") == NamespaceBundle("t/n", 0, 0x1F)


@pytest.mark.parametrize(
    "text", ["0x00000000", "00000000_40000000", "0x0_0x100000000", "0x_0x1", "0x0_0x1_0x2", " 0x0_0x1"]
)
def test_a_text_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidRange, match="write it as 0x00000000_0x40000000"):
        parse_range(text)


def test_a_bundle_without_namespace_is_refused() -> None:
    with pytest.raises(InvalidInput, match="names no namespace"):
        NamespaceBundle.parse("0x00000000_0x40000000")


@pytest.mark.parametrize("text", ["40000000", "0x", "0x123456789", "-0x1", "0xg"])
def test_a_text_that_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(InvalidRange, match="is not a hash; write it as 0x40000000"):
        parse_edge(text)


@pytest.mark.parametrize(
    ("lower", "upper", "words"),
    [
        (1, 1, "is empty: both ends are 1"),
        (0, 0, "is empty"),
        (5, 3, "lower 5, upper 3 is not on the ring"),
        (-1, 3, "lower -1, upper 3 is not on the ring"),
        (0, LAST_HASH + 1, "is not on the ring; give 0x00000000 <= lower < upper <= 0xffffffff"),
    ],
)
def test_a_range_off_the_ring_or_empty_is_refused(lower: int, upper: int, words: str) -> None:
    with pytest.raises(InvalidRange) as refused:
        NamespaceBundle("t/n", lower, upper)

    assert words in refused.value.message


@pytest.mark.parametrize(
    ("lower", "upper", "cuts"),
    [
        (0, LAST_HASH, [LAST_HASH]),
        (0, LAST_HASH, [5, LAST_HASH]),
        (LAST_HASH, LAST_HASH, [LAST_HASH]),
        (3, 9, [3]),
        (3, 9, [9]),
        (3, 9, [5, 10]),
        (3, 9, [2, 5]),
    ],
)
def test_a_cut_that_is_not_inside_is_refused(lower: int, upper: int, cuts: list[int]) -> None:
    with pytest.raises(InvalidRange, match="is not inside bundle t/n/0x") as refused:
        NamespaceBundle("t/n", lower, upper).parts(iter(cuts))

    assert "give points above its lower end and below its upper end" in refused.value.message


def test_parts_rise_and_cover_the_bundle() -> None:
    whole = NamespaceBundle("t/n", 3, LAST_HASH)

    assert [part.range_text for part in whole.parts([9, 5])] == [
        "0x00000003_0x00000005",
        "0x00000005_0x00000009",
        "0x00000009_0xffffffff",
    ]
    assert whole.parts([]) == (whole,)
    with pytest.raises(InvalidRange, match="is empty"):
        whole.parts([5, 5])


def test_the_very_last_hash_alone_is_a_legal_range() -> None:
    only = NamespaceBundle("t/n", LAST_HASH, LAST_HASH)

    assert (only.width, only.contains(LAST_HASH), only.can_split) == (1, True, False)


@pytest.mark.parametrize(
    ("lower", "upper", "inside", "outside"),
    [
        (0x10, 0x20, [0x10, 0x1F], [0x0F, 0x20]),
        (0xFFFFFFF0, LAST_HASH, [0xFFFFFFF0, LAST_HASH], [0xFFFFFFEF]),
    ],
)
def test_only_the_last_bundle_holds_its_upper_end(
    lower: int, upper: int, inside: list[int], outside: list[int]
) -> None:
    bundle = NamespaceBundle("t/n", lower, upper)

    assert [bundle.contains(at) for at in inside + outside] == [True] * len(inside) + [False] * len(outside)


@pytest.mark.parametrize(
    ("lower", "upper", "splittable", "width"),
    [
        (7, 8, False, 1),
        (7, 9, True, 2),
        (LAST_HASH - 1, LAST_HASH, False, 2),
        (LAST_HASH - 2, LAST_HASH, True, 3),
        (0, LAST_HASH, True, 2**32),
    ],
)
def test_what_can_be_split(lower: int, upper: int, splittable: bool, width: int) -> None:
    bundle = NamespaceBundle("t/n", lower, upper)

    assert (bundle.can_split, bundle.width) == (splittable, width)


@given(boundaries(), st.randoms(use_true_random=False))
def test_bundles_are_ordered_by_namespace_then_range(bundles, random: Random) -> None:
    others = [NamespaceBundle("a/n", bundle.lower, bundle.upper) for bundle in bundles.bundles]
    shuffled = [*bundles.bundles, *others]
    random.shuffle(shuffled)

    assert sorted(shuffled) == [*others, *bundles.bundles]


def test_bundles_that_overlap_have_no_order() -> None:
    whole, half = NamespaceBundle("t/n", 0, 100), NamespaceBundle("t/n", 50, 100)

    with pytest.raises(InvalidRange, match="overlap and have no order"):
        sorted([whole, half])
    assert whole <= NamespaceBundle("t/n", 0, 100)
    assert half < NamespaceBundle("t/n", 100, 200)
    assert whole < NamespaceBundle("t/o", 0, 100)
    assert not whole.overlaps(NamespaceBundle("t/o", 0, 100))


def test_a_bundle_is_compared_with_bundles_only() -> None:
    with pytest.raises(TypeError):
        assert NamespaceBundle("t/n", 0, 1) < "t/n/0x00000000_0x00000001"
