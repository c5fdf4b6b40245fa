"""What an operation says of its parameters, also of those that a newer program has written."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidRange
from controller.domain.hash_range import HashRange
from controller.domain.operation import CHILD_RANGES, OperationKind
from controller.domain.repeated_reshape import describe_first
from tests.support.operations import make_operation

HALVES = ["0000-7fff", "8000-ffff"]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, None),
        ({CHILD_RANGES: HALVES}, (HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF))),
        ({CHILD_RANGES: 2}, None),
        ({CHILD_RANGES: "0000-ffff"}, None),
    ],
    ids=["no ranges", "ranges", "a number", "a text"],
)
def test_the_ranges_of_a_reshape_that_a_broker_performs(
    parameters: dict[str, object], expected: tuple[HashRange, ...] | None
) -> None:
    operation = make_operation(OperationKind.SPLIT, parameters=parameters)
    assert operation.ranges_on_broker == expected


def test_a_range_that_is_none_is_refused() -> None:
    operation = make_operation(OperationKind.SPLIT, parameters={CHILD_RANGES: ["7fff"]})
    with pytest.raises(InvalidRange):
        _ = operation.ranges_on_broker


def test_a_repeated_reshape_on_a_broker_is_described_by_its_ranges() -> None:
    known = make_operation(
        OperationKind.SPLIT, parent_ids=(0,), parameters={CHILD_RANGES: HALVES, "bucket_count": 1}
    )
    newer = make_operation(
        OperationKind.SPLIT, parent_ids=(0,), parameters={CHILD_RANGES: "halves", "bucket_count": 1}
    )
    assert [describe_first(known), describe_first(newer)] == [
        "split of segment 0 into 0000-7fff, 8000-ffff",
        "split of segment 0 into ",
    ]
