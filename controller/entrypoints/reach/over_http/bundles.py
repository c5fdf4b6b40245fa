"""Bundles of the cluster that the server's settings name, asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from controller.bundles.store import views as bundle_views
from controller.entrypoints.reach.columns import BUNDLE, PROPOSAL
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, told
from controller.entrypoints.reach.port import FoundBundles, Row

_DIGITS = {"msg_rate": 1, "byte_rate": 0, "age_seconds": 0}
"""Behind the point, as the database rounds them."""


@dataclass(frozen=True, slots=True)
class HttpBundles:
    """See `port.Bundles`."""

    calls: Calls

    def list(self, namespace: str | None, limit: int) -> FoundBundles:
        """See `port.Bundles`."""
        rows = self.calls.every(f"{API}/bundles", namespace=namespace, limit=limit)
        if namespace is not None and not rows:
            raise bundle_views.unknown_namespace(namespace)
        found = self.calls.get(f"{API}/bundles/count", namespace=namespace)
        shown = [_rounded(chosen(row, BUNDLE)) for row in rows]
        return FoundBundles(told(found, "cluster"), shown, told(found, "bundles"))

    def proposals(
        self, *, namespace: str | None, states: Sequence[str], cycle_id: int | None, limit: int
    ) -> Sequence[Row]:
        """See `port.Bundles`."""
        asked = {"namespace": namespace, "cycle_id": cycle_id, "state": list(states) or None}
        rows = self.calls.every(f"{API}/bundles/proposals", limit=limit, **asked)
        return [
            _rounded({**chosen(row, PROPOSAL), "bundle": f"{told(row, 'namespace')}/{row['bundle']}"})
            for row in rows
        ]


def _rounded(row: Row) -> Row:
    return {
        name: Decimal(f"{value:.{_DIGITS[name]}f}") if name in _DIGITS and value is not None else value
        for name, value in row.items()
    }
