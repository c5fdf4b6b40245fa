"""How the acts of an operation call a data plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class CallAll(Protocol):
    """Make calls under the claims, several at a time; results in order, the first error raised.

    `seconds`: the longest one of them may take; None: an ordinary call's time.
    """

    def __call__(
        self, calls: Sequence[Callable[[], Result]], seconds: float | None = None
    ) -> list[Result]: ...
