"""The ring: which lists of boundaries are valid, where a topic is, what a split makes, one bundle, and the hash that puts topics there."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.ring import (
    LAST_HASH,
    MAX_BUNDLES,
    NamespaceBundle,
    NamespaceBundles,
    edge_text,
    equal_cuts,
    parse_edge,
    parse_range,
    topic_hash,
)
from controller.domain.errors import BundleNotFound, InvalidInput, InvalidRange
from tests.unit.bundles.domain.strategies import boundaries, hashes


def bundles(*edges: int, namespace: str = "public/default") -> NamespaceBundles:
    return NamespaceBundles(namespace, edges)


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ((), "has 0 boundaries (none); give at least two"),
        ((0,), "has 1 boundaries (0x00000000); give at least two"),
        ((0, 9, 5, LAST_HASH), "fall from 0x00000009 to 0x00000005; give them rising"),
        ((0, 9, 9, LAST_HASH), "boundary 0x00000009 of public/default is repeated and makes an empty range"),
        ((1, 9, LAST_HASH), "the first boundary of public/default is 0x00000001; it must be 0x00000000"),
        ((0, 9), "the last boundary of public/default is 0x00000009; it must be 0xffffffff"),
        ((0, LAST_HASH + 1), "the last boundary of public/default is 0x100000000; it must be 0xffffffff"),
    ],
)
def test_a_list_that_does_not_tile_the_ring_is_refused(edges: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidRange) as refused:
        bundles(*edges)

    assert words in refused.value.message


def test_a_namespace_is_created_in_four() -> None:
    assert NamespaceBundles.equal("t/n").boundaries == (0, 0x40000000, 0x80000000, 0xC0000000, LAST_HASH)


def test_the_remainder_goes_to_the_last_bundle() -> None:
    """Issue 22254 logs 0xaaaaaaa8_0xc71c71c4, the seventh of nine."""
    nine = NamespaceBundles.equal("t/n", 9)

    assert nine.bundles[6].range_text == "0xaaaaaaa8_0xc71c71c4"
    assert nine.bundles[8].width - nine.bundles[0].width == 2**32 % 9


@pytest.mark.parametrize("count", [0, -1, MAX_BUNDLES + 1])
def test_a_number_of_bundles_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(InvalidInput, match=f"cannot have {count} bundles; give a number from 1 to 65536"):
        NamespaceBundles.equal("t/n", count)


@pytest.mark.parametrize("count", [1, MAX_BUNDLES])
def test_the_least_and_the_most_bundles_are_created(count: int) -> None:
    assert NamespaceBundles.equal("t/n", count).count == count


@pytest.mark.parametrize(
    ("at", "index"),
    [(0, 0), (0x0F, 0), (0x10, 1), (0x1F, 1), (0x20, 2), (LAST_HASH - 1, 2), (LAST_HASH, 2)],
)
def test_a_boundary_belongs_to_the_bundle_above_it_and_the_last_hash_to_the_last(at: int, index: int) -> None:
    three = bundles(0, 0x10, 0x20, LAST_HASH)

    assert three.bundle_at(at) == three.bundles[index]


@pytest.mark.parametrize("at", [-1, LAST_HASH + 1])
def test_a_hash_off_the_ring_is_refused(at: int) -> None:
    with pytest.raises(InvalidRange, match=f"hash {at} is not on the ring"):
        bundles(0, LAST_HASH).bundle_at(at)


@given(boundaries(), hashes)
def test_every_hash_is_in_exactly_one_bundle(some: NamespaceBundles, at: int) -> None:
    assert [bundle for bundle in some.bundles if bundle.contains(at)] == [some.bundle_at(at)]


def test_a_topic_is_found_by_its_complete_name() -> None:
    found = NamespaceBundles.equal("public/default").bundle_of("my-topic")

    assert found.range_text == "0x00000000_0x40000000"
    assert found.contains(topic_hash("my-topic"))


def test_a_topic_of_another_namespace_is_refused() -> None:
    with pytest.raises(InvalidInput, match="topic t/n/x is in namespace t/n, not in public/default"):
        NamespaceBundles.equal("public/default").bundle_of("t/n/x")


def test_a_bundle_that_was_split_meanwhile_is_not_found() -> None:
    """Both faces of the stale boundary of issues 5510 and 24138."""
    now = bundles(0, 0x10, 0x20, LAST_HASH)

    assert now.require(now.bundles[1]) == now.bundles[1]
    with pytest.raises(
        BundleNotFound, match="no bundle starts at 0x00000011; that hash is in 0x00000010_0x00000020"
    ):
        now.require(NamespaceBundle("public/default", 0x11, 0x20))
    with pytest.raises(
        BundleNotFound, match="invalid upper boundary: the bundle from 0x00000010 ends at 0x00000020"
    ):
        now.require(NamespaceBundle("public/default", 0x10, LAST_HASH))
    with pytest.raises(BundleNotFound, match="no bundle starts at 0xffffffff"):
        now.require(NamespaceBundle("public/default", LAST_HASH, LAST_HASH))
    with pytest.raises(InvalidInput, match="is not of namespace public/default"):
        now.require(NamespaceBundle("t/n", 0x10, 0x20))


def test_the_full_ring_split_in_four_is_not_the_ring_created_in_four() -> None:
    """Pulsar's tests assert both: a split divides upper - lower, creation divides 2^32."""
    whole = bundles(0, LAST_HASH)

    assert equal_cuts(whole.bundles[0], 4) == (0x3FFFFFFF, 0x7FFFFFFE, 0xBFFFFFFD)
    assert equal_cuts(whole.bundles[0], 2) == (0x7FFFFFFF,)


@pytest.mark.parametrize("parts", [0, 1, 4])
def test_parts_out_of_bounds_are_refused(parts: int) -> None:
    some = bundles(0, 3, LAST_HASH)
    with pytest.raises(InvalidRange, match=f"cannot be split into {parts} parts; give 2 to 3"):
        equal_cuts(some.bundles[0], parts)


@pytest.mark.parametrize("edges", [(0, 7, 8, LAST_HASH), (0, 7, LAST_HASH - 1, LAST_HASH)])
def test_a_bundle_too_narrow_cannot_be_split(edges: tuple[int, ...]) -> None:
    assert not min(bundles(*edges).bundles, key=lambda bundle: bundle.width).can_split


@given(boundaries(), st.data())
def test_any_split_tiles_the_ring_and_touches_one_bundle(some: NamespaceBundles, data: st.DataObject) -> None:
    parent = data.draw(st.sampled_from([bundle for bundle in some.bundles if bundle.can_split]))
    parts = data.draw(st.integers(2, min(9, parent.upper - parent.lower)))
    inside = st.integers(parent.lower + 1, parent.upper - 1)
    cuts = data.draw(st.sets(inside, min_size=1, max_size=5))

    for points in (equal_cuts(parent, parts), cuts):
        index = some.bundles.index(parent)
        after = bundles(*sorted((*some.boundaries, *points)), namespace=some.namespace).bundles
        assert after == (*some.bundles[:index], *parent.parts(points), *some.bundles[index + 1 :])
        assert sum(bundle.width for bundle in after) == 2**32
    assert len(equal_cuts(parent, parts)) == parts - 1


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
