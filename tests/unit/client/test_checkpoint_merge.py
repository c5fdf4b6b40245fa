"""Where a group is whose members kept their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.client.checkpoint import Checkpoint, merged
from controller.dataplane.log_client import Position
from controller.domain.errors import InvalidInput

POSITIONS = st.none() | st.lists(st.integers(-1, 2**62), min_size=1, max_size=3).map(tuple)


def of_member(positions: Mapping[int, tuple[int, Position | None]], *done: int, epoch: int = 3) -> Checkpoint:
    """With the generation of each."""
    places = {i: at for i, (_, at) in positions.items()}
    return Checkpoint(
        7, "topic://t/n/x", epoch, places, frozenset(done), {i: n for i, (n, _) in positions.items()}
    )


def test_a_group_is_where_the_latest_owner_of_each_segment_was() -> None:
    a = of_member({1: (2, (50,)), 2: (5, (7,)), 3: (1, None)}, 9, epoch=4)
    b = of_member({1: (3, (10,)), 2: (5, (8,)), 4: (6, (1,))}, 3, epoch=3)
    alone = Checkpoint(7, "topic://t/n/x", 1, {1: (99,), 5: (2,)}, frozenset({4}))

    for values in ([a, b, alone], [alone, b, a]):
        assert merged(values) == Checkpoint(
            7,
            "topic://t/n/x",
            4,
            {1: (10,), 2: (8,), 5: (2,)},
            frozenset({3, 4, 9}),
            {1: 3, 2: 5},
        )
    with pytest.raises(InvalidInput, match="different topics"):
        merged([a, Checkpoint(8, "topic://t/n/y", 0, {}, frozenset())])
    with pytest.raises(InvalidInput, match="give at least one"):
        merged([])


@given(
    st.lists(
        st.dictionaries(st.integers(0, 5), st.tuples(st.integers(1, 4), POSITIONS), max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_merging_again_changes_nothing(found: list[dict[int, tuple[int, Position | None]]]) -> None:
    """So each member may carry what it knows of the others."""
    values = [of_member(one) for one in found]
    whole = merged(values)

    assert merged([*values, whole]) == merged([whole]) == whole
    assert merged([merged(values[:1]), *values[1:]]) == whole
