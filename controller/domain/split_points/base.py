"""What a way of choosing cut points must offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.domain.errors import InvalidInput
from controller.domain.hash_range import HashRange
from controller.domain.shown import shown
from controller.domain.whole_numbers import LARGEST_FLOAT


@dataclass(frozen=True, slots=True)
class HashLoad:
    """Load seen on a part of the ring, in any unit; it counts as even within the part.

    Raises InvalidInput unless the load is finite and >= 0.
    """

    hash_range: HashRange
    load: float

    def __post_init__(self) -> None:
        if not 0 <= self.load <= LARGEST_FLOAT:
            raise InvalidInput(
                f"load {shown(self.load)} on {self.hash_range} is not finite and >= 0; drop the sample"
            )


class SplitPoint(Protocol):
    """Chooses `parts - 1` ascending cut points inside a range, each the first hash of a piece.

    Pure and total: for 2 <= parts <= width it always answers with valid cut points, whatever the
    observed loads (possibly none). Raises InvalidRange for other `parts`.
    """

    def __call__(
        self, hash_range: HashRange, parts: int = 2, loads: Sequence[HashLoad] = ()
    ) -> tuple[int, ...]: ...
