"""A data plane whose calls fail on purpose: before the action, or after it, when the caller has given up.

Wraps any real data plane, so that a test of the runner or the reconciler meets each failure at each call, while the performed actions are
real. Every call is numbered in the order of arrival, from 1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, cast

from controller.dataplane.base import DataPlane
from controller.domain.errors import CleaveError, DataPlaneTimeout, DataPlaneUnavailable

CALLS = frozenset(
    {
        "create_segment",
        "create_successors",
        "terminate_segments",
        "subscriptions_of",
        "list_segments_of",
        "describe_logs",
        "terminate_segment",
        "delete_segment",
        "segment_state",
        "create_subscription",
        "delete_subscription",
        "list_segments",
        "list_subscriptions",
        "backlog",
        "seek",
        "skip_all",
        "sample",
        "sample_keys",
        "create_topic",
        "delete_topic",
        "read_layout",
        "ask_reshape",
        "check_logs",
        "auto_scaler",
        "set_auto_scaler",
        "topic_subscriptions",
        "close_gate",
        "open_gate",
        "gate_state",
        "skip_barrier",
        "persist_cursor_at_end",
        "probe_fence",
    }
)
"""The calls that reach the outside, and so can fail: of any data plane, of one that keeps layouts, and of one that has gates."""


class Fault(StrEnum):
    """Failure of one call."""

    REFUSED = "refused"
    """DataPlaneUnavailable; the act did not happen."""
    LOST_REQUEST = "lost-request"
    """DataPlaneTimeout; the act did not happen."""
    LOST_ANSWER = "lost-answer"
    """DataPlaneTimeout; the act happened."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """Fails the calls that it fits: by name, by number, or by both; `times` None: without end."""

    fault: Fault
    call: str | None = None
    number: int | None = None
    times: int | None = 1

    def fits(self, call: str, number: int) -> bool:
        """Return True if the fault applies to this call."""
        return self.call in (None, call) and self.number in (None, number)


class FaultyDataPlane:
    """Replaces the data plane that it wraps; pass it as `as_data_plane()`. Safe to share between threads."""

    def __init__(self, wrapped: DataPlane, *faults: PlannedFault) -> None:
        for planned in faults:
            if planned.call is not None and planned.call not in CALLS:
                raise ValueError(f"no such call: {planned.call}; choose one of {sorted(CALLS)}")
        self._wrapped = wrapped
        self._lock = threading.Lock()
        self._left = {planned: planned.times for planned in faults}
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        """Every call so far, name and arguments, failed ones included."""
        self.injected: list[tuple[str, Fault]] = []
        """The faults that struck, so that a test can demand that they did."""
        self.before_call: Callable[[str, int], None] = lambda _call, _number: None
        """Runs ahead of each call, outside the lock: to stop the world, or to kill somebody."""

    def as_data_plane(self) -> DataPlane:
        """Return this object, with the type of a data plane."""
        return cast(DataPlane, self)

    @property
    def __class__(self) -> type[Any]:
        """Class of the wrapped plane, because callers check whether a plane is a `LayoutKeeper`."""
        return type(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._wrapped, name)
        if name not in CALLS:
            return attribute

        def call(*arguments: Any, **named: Any) -> Any:
            return self._perform(name, partial(attribute, *arguments, **named), (*arguments, *named.values()))

        return call

    def _perform(self, name: str, act: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            self.log.append((name, arguments))
            number = len(self.log)
            fault = self._strike(name, number)
        self.before_call(name, number)
        if fault is Fault.LOST_ANSWER:
            act()
        if fault is not None:
            raise _error(fault, f"{name}{arguments!r}, call {number}")
        return act()

    def _strike(self, name: str, number: int) -> Fault | None:
        for planned, remaining in self._left.items():
            if remaining != 0 and planned.fits(name, number):
                self._left[planned] = None if remaining is None else remaining - 1
                self.injected.append((name, planned.fault))
                return planned.fault
        return None


def _error(fault: Fault, what: str) -> CleaveError:
    if fault is Fault.REFUSED:
        return DataPlaneUnavailable(f"injected: {what} refused", delay_seconds=0.01)
    return DataPlaneTimeout(f"injected: no answer to {what}", delay_seconds=0.01)
