"""The protocol by which the steps of an operation call a data plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class CallAll(Protocol):
    """Makes calls under the claims, several at a time. Returns the results in order; raises the first error.

    `seconds`: the longest time of one call; None: the time-out of an ordinary call.
    """

    def __call__(
        self, calls: Sequence[Callable[[], Result]], seconds: float | None = None
    ) -> list[Result]: ...
