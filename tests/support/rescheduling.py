"""Lets tests continue when a worker of xdist dies: its current test runs once more on another worker and is named, as for a missed
deadline.

xdist itself also distributes the dead worker's finished work again, as work without a test, and then waits for its end without limit; it
gives work to a replacement that has not collected yet, and loses the work; it fails on a replacement that it has sent away again; and it
cannot repeat a test whose worker died. Processes that the worker had started end with it (`devstack.process`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import LoadGroupScheduling


class Rescheduling(LoadGroupScheduling):
    """Scheduler like `--dist loadgroup`."""

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Add the collection of a node, unless the node came when all work was distributed: it was sent away, and still reports its
        collection.
        """
        if node in self.assigned_work:
            super().add_node_collection(node, collection)

    def remove_node(self, node: Any) -> str | None:
        """Remove a node without distributing its finished units again."""
        units = self.assigned_work[node]
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]
        return super().remove_node(node)

    def mark_test_pending(self, item: str) -> None:
        """Do nothing, because `remove_node` has returned the test. The plugin of `--reruns` skips a test whose worker has died too often."""

    def _reschedule(self, node: Any) -> None:
        """Give work to a node that has collected; a replacement gets its work with `schedule` after its collection."""
        if node in self.registered_collections:
            super()._reschedule(node)
