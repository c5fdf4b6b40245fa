"""Bundles of the cluster that the server's settings name, asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from controller.bundles.domain.ring.topic_name import checked_namespace
from controller.bundles.services.split_policies import PolicyOfNamespace
from controller.bundles.store import views as bundle_views
from controller.bundles.store.cycles import StoredCycle
from controller.entrypoints.reach.columns import BROKER, BUNDLE, PROPOSAL
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, namespace_path, told
from controller.entrypoints.reach.port import FoundBrokers, FoundBundles, Row

if TYPE_CHECKING:
    pass

Told = TypeVar("Told", StoredCycle, PolicyOfNamespace)
_DIGITS = {
    "msg_rate": 1,
    "byte_rate": 0,
    "age_seconds": 0,
    "usage": 4,
    "above_mean": 4,
    "silent_seconds": 1,
}
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

    def brokers(self) -> FoundBrokers:
        """See `port.Bundles`."""
        active = told(self.calls.get(f"{API}/bundles/brokers/active"), "brokers")
        rows = [_rounded(chosen(row, BROKER)) for row in self.calls.every(f"{API}/bundles/brokers")]
        fullest = sorted(rows, key=lambda row: (row["usage"] is None, -(row["usage"] or 0), row["broker"]))
        return FoundBrokers(fullest, active)

    def bundle_of(self, topic: str) -> str | None:
        """See `port.Bundles`."""
        found: str | None = told(self.calls.get(f"{API}/bundles/of-topic", topic=topic), "bundle")
        return found

    def split_policy(self, namespace: str) -> PolicyOfNamespace:
        """See `port.Bundles`."""
        return _told(PolicyOfNamespace, self.calls.get(f"{_namespace_path(namespace)}/policy"))

    def merges(self, namespace: str | None) -> Sequence[Row]:
        """See `port.Bundles`."""
        return self.calls.every(f"{API}/bundles/merges", namespace=namespace)

    def cycle(self, cycle_id: int) -> StoredCycle:
        """See `port.Bundles`."""
        return _told(StoredCycle, self.calls.get(f"{API}/bundles/cycles/{cycle_id}"))


def _namespace_path(namespace: str) -> str:
    return f"{namespace_path(checked_namespace(namespace))}/bundles"


def _told(kind: type[Told], answer: Any) -> Told:
    return kind(**{one.name: told(answer, one.name) for one in fields(kind)})


def _rounded(row: Row) -> Row:
    return {
        name: Decimal(f"{value:.{_DIGITS[name]}f}") if name in _DIGITS and value is not None else value
        for name, value in row.items()
    }
