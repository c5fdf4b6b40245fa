"""The segment record and the names of the logs behind segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import FULL_RANGE, HashRange
from controller.domain.segment import (
    Segment,
    backing_topic_name,
    parse_segment_descriptor,
    segment_descriptor,
)
from tests.unit.domain.strategies import hash_ranges

LEGACY = "persistent://t/n/orders-partition-0"


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        (Segment(12, HashRange(0, 0x7FFF)), "segment://t/n/orders/0000-7fff-12"),
        (Segment(0, FULL_RANGE, legacy_topic_name=LEGACY), LEGACY),
        (Segment(0, FULL_RANGE, legacy_topic_name=""), "segment://t/n/orders/0000-ffff-0"),
    ],
    ids=["range in hex and id in decimal", "a legacy topic", "an empty legacy name"],
)
def test_a_segment_is_backed_by_a_topic_of_its_range_and_id_or_by_its_legacy_topic(
    segment: Segment, name: str
) -> None:
    assert backing_topic_name("topic://t/n/orders", segment) == name


@pytest.mark.parametrize(
    "topic", ["persistent://t/n/orders", "t/n/orders", "topic://t/orders", "topic:////x"]
)
def test_a_parent_that_is_no_scalable_topic_is_refused(topic: str) -> None:
    with pytest.raises(InvalidInput, match="is not a scalable topic"):
        backing_topic_name(topic, Segment(0, FULL_RANGE))


@given(hash_ranges(), st.integers(0, 2**63))
def test_a_descriptor_reads_back(hash_range: HashRange, segment_id: int) -> None:
    assert parse_segment_descriptor(segment_descriptor(hash_range, segment_id)) == (hash_range, segment_id)


@pytest.mark.parametrize(
    "text", ["0000-7fff", "0000-7fff-", "0000-7fff-0c", "0000-7fff--1", "x-0000-7fff-1", "0000-7fff-007"]
)
def test_other_descriptors_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a segment descriptor"):
        parse_segment_descriptor(text)


def test_a_segment_without_splits_is_one_bucket() -> None:
    assert Segment(0, FULL_RANGE).bucket_count == 1
    assert Segment(0, FULL_RANGE, bucket_splits=(5, 9)).bucket_count == 3
