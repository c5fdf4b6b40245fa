"""Bundles of the cluster that the server's settings name, asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from controller.bundles.domain.ring.bundle import NamespaceBundle
from controller.bundles.domain.ring.topic_name import checked_namespace
from controller.bundles.domain.splitting.bundle_choice import BUNDLE_CHOICES
from controller.bundles.services.split_policies import PolicyOfNamespace
from controller.bundles.store import views as bundle_views
from controller.bundles.store.cycles import StoredCycle
from controller.bundles.store.namespaces import BalancingMode
from controller.client.servers import path_part
from controller.entrypoints.reach.columns import BROKER, BUNDLE, PROPOSAL
from controller.entrypoints.reach.over_http.calls import API, Calls, chosen, namespace_path, told
from controller.entrypoints.reach.port import FoundBrokers, FoundBundles, Row

if TYPE_CHECKING:
    from controller.bundles.services.manual_acts import ManualSplit

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

    def answer(self, proposal_ids: Sequence[int], *, refuse: str | None, dry_run: bool) -> Sequence[Row]:
        """See `port.Bundles`."""
        path = f"{API}/bundles/proposals/{'approve' if refuse is None else 'refuse'}"
        said = None if refuse is None else {"reason": refuse}
        answer = self.calls.change("POST", path, said, dry_run, proposal_id=list(proposal_ids))
        return list(told(answer, "proposals"))

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

    def split(self, asked: ManualSplit, *, unload: bool, dry_run: bool) -> Row:
        """See `port.Bundles`."""
        said = {**asdict(asked), "unload": unload}
        del said["bundle"]
        answer = self.calls.change("POST", f"{_bundle_path(asked.bundle)}/split", said, dry_run)
        return chosen(answer, ("bundle", "parts") if dry_run else ("bundle", "parts", "outcome"))

    def unload(self, bundle: str, to: str | None, *, dry_run: bool) -> Row:
        """See `port.Bundles`."""
        answer = self.calls.change("POST", f"{_bundle_path(bundle)}/unload", {"destination": to}, dry_run)
        known = ("bundle", "owner", "destination")
        return chosen(answer, known if dry_run else (*known, "outcome"))

    def set_mode(self, namespace: str, to: BalancingMode, *, dry_run: bool) -> Row:
        """See `port.Bundles`."""
        path = f"{_namespace_path(namespace)}/mode"
        answer = self.calls.change("POST", path, {"mode": to.value}, dry_run)
        return chosen(answer, ("namespace", "mode", "row_version"))

    def split_policy(self, namespace: str) -> PolicyOfNamespace:
        """See `port.Bundles`."""
        return _told(PolicyOfNamespace, self.calls.get(f"{_namespace_path(namespace)}/policy"))

    def change_split_policy(
        self, namespace: str, knobs: Mapping[str, Any], *, replace: bool, dry_run: bool
    ) -> PolicyOfNamespace:
        """See `port.Bundles`."""
        path, how = f"{_namespace_path(namespace)}/policy", "replace" if replace else "patch"
        return _told(PolicyOfNamespace, self.calls.change("POST", path, dict(knobs), dry_run, how=how))

    def merges(self, namespace: str | None) -> Sequence[Row]:
        """See `port.Bundles`."""
        return self.calls.every(f"{API}/bundles/merges", namespace=namespace)

    def cycle(self, cycle_id: int) -> StoredCycle:
        """See `port.Bundles`."""
        return _told(StoredCycle, self.calls.get(f"{API}/bundles/cycles/{cycle_id}"))


def _namespace_path(namespace: str) -> str:
    return f"{namespace_path(checked_namespace(namespace))}/bundles"


def _bundle_path(text: str) -> str:
    """Of a bundle as people write it. Raises InvalidInput for what is none."""
    namespace, _, part = text.rpartition("/")
    if part not in BUNDLE_CHOICES:
        namespace, part = (parsed := NamespaceBundle.parse(text)).namespace, parsed.range_text
    return f"{_namespace_path(namespace)}/{path_part(part)}"


def _told(kind: type[Told], answer: Any) -> Told:
    return kind(**{one.name: told(answer, one.name) for one in fields(kind)})


def _rounded(row: Row) -> Row:
    return {
        name: Decimal(f"{value:.{_DIGITS[name]}f}") if name in _DIGITS and value is not None else value
        for name, value in row.items()
    }
