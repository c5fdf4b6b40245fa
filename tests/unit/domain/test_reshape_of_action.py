"""The reshape an act asks for."""

from __future__ import annotations

import pytest

from controller.domain.decision import Decision, Merge, Rebucket, Recut, Split
from controller.domain.layout import SegmentLayout
from controller.domain.reshape import ReshapeKind
from controller.domain.reshape_of_action import plan

LAYOUT = SegmentLayout.initial(2, now=0)


@pytest.mark.parametrize(
    ("act", "kind", "parents", "ranges"),
    [
        (Split(0), ReshapeKind.SPLIT, (0,), ["0000-3fff", "4000-7fff"]),
        (Split(1, (0x9000, 0xA000)), ReshapeKind.SPLIT, (1,), ["8000-8fff", "9000-9fff", "a000-ffff"]),
        (Merge(0, 1), ReshapeKind.MERGE, (0, 1), ["0000-ffff"]),
        (Rebucket(0, 8), ReshapeKind.REBUCKET, (0,), ["0000-7fff"]),
        (Recut((0, 1), (0x1000,)), ReshapeKind.RECUT, (0, 1), ["0000-0fff", "1000-ffff"]),
    ],
)
def test_each_act_asks_for_its_reshape(
    act: Decision, kind: ReshapeKind, parents: tuple[int, ...], ranges: list[str]
) -> None:
    planned = plan(act, LAYOUT, max_buckets=16)

    assert (planned.kind, planned.parent_ids) == (kind, parents)
    assert [str(child.hash_range) for child in planned.children] == ranges
