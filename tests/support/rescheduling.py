"""Tests go on when a worker of xdist dies: the one that it was at is made once more elsewhere, and named, as one that missed a deadline.

xdist itself hands out again what the dead worker had done before as well, as work without a test in it, and then waits for ever for
its end; it gives work to a replacement that has not collected yet, and loses it; it fails over one that it has sent away again; and
it cannot repeat a test whose worker died. What the worker had started ends with it (`devstack.process`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import LoadGroupScheduling


class Rescheduling(LoadGroupScheduling):
    """As `--dist loadgroup`."""

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """See the base class; one that came when all was delivered was sent away, and still says what it has collected."""
        if node in self.assigned_work:
            super().add_node_collection(node, collection)

    def remove_node(self, node: Any) -> str | None:
        """See the base class."""
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
        return super().remove_node(node)

    def mark_test_pending(self, item: str) -> None:
        """It is: `remove_node` has given it back. The plugin of `--reruns` passes over one that has died too often."""

    def _reschedule(self, node: Any) -> None:
        """A replacement gets its work when it has collected: `schedule` is called then."""
        if node in self.registered_collections:
            super()._reschedule(node)
