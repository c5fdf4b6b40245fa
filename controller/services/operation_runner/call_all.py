"""The protocol by which the steps of an operation call a data plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class CallAll(Protocol):
    """Makes calls of a data plane, several at a time, and keeps the operation claims valid during the calls.
    Returns the results in the order of the calls; raises the first error, and HeldUp if a claim is lost.

    `seconds`: the longest time of one call; None: the time-out of an ordinary call.
    """

    def __call__(
        self, calls: Sequence[Callable[[], Result]], seconds: float | None = None
    ) -> list[Result]: ...
