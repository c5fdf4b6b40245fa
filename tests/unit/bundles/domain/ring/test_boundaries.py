"""Boundaries of a namespace: which lists are valid, where a topic is, what a split makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.bundles.domain.ring.boundaries import MAX_BUNDLES, NamespaceBundles, equal_cuts
from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.hashes import LAST_HASH, topic_hash
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
