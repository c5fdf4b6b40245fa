"""Namespaces whose bundles are known: their boundaries, balancing modes, and overrides of the split policy.

A namespace that a report names for the first time is in dry run: proposals are only shown until a person enables the namespace.
Every change compares the row version. `domain.ring` defines boundaries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, text

from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.policy import SplitPolicy, read_stored
from controller.bundles.store import proposals as bundle_proposals
from controller.domain.errors import LostRace, NotFound
from controller.domain.pulsar_names import namespace_of


class BalancingMode(StrEnum):
    """Handling of the proposals of a namespace."""

    DRY_RUN = "dry-run"
    """Proposals are only shown."""
    APPROVAL = "approval"
    """Proposals are applied after a person has approved them."""
    AUTOMATIC = "automatic"
    """Proposals are applied."""


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """A stored namespace of a cluster. `boundaries_at`: time at which the boundaries were read from a broker. `split_settings`: the
    overrides of the split policy. `actor`: the last process or person that changed the row.
    """

    cluster: str
    namespace: str
    boundaries: tuple[int, ...]
    mode: BalancingMode
    split_settings: Mapping[str, Any]
    row_version: int
    actor: str
    boundaries_at: datetime
    updated_at: datetime

    @property
    def bundles(self) -> NamespaceBundles:
        """Boundaries of the namespace, checked."""
        return NamespaceBundles(self.namespace, self.boundaries)


_COLUMNS = (
    "cluster, namespace, boundaries, mode, split_settings, row_version, actor, boundaries_at, updated_at"
)
_GET = text(f"""
    SELECT {_COLUMNS} FROM cleave.namespace_bundles WHERE cluster = :cluster AND namespace = :namespace
""")  # noqa: S608  # column names of our own
_LIST = text(f"""
    SELECT {_COLUMNS} FROM cleave.namespace_bundles WHERE cluster = :cluster ORDER BY namespace
""")  # noqa: S608


_UPDATE = text(f"""
    UPDATE cleave.namespace_bundles
       SET boundaries = coalesce(CAST(:boundaries AS bigint[]), boundaries), mode = coalesce(:mode, mode),
           split_settings = coalesce(CAST(:split_settings AS jsonb), split_settings),
           boundaries_at = CASE WHEN CAST(:boundaries AS bigint[]) IS NULL THEN boundaries_at
                                ELSE clock_timestamp() END,
           row_version = row_version + 1, actor = :actor, updated_at = clock_timestamp()
     WHERE cluster = :cluster AND namespace = :namespace AND row_version = :seen
    RETURNING {_COLUMNS}
""")  # noqa: S608


def get_namespace(tx: Connection, cluster: str, namespace: str) -> NamespaceRow:
    """Return the stored row of a namespace. Raises NotFound if no report has named the namespace yet."""
    row = tx.execute(_GET, {"cluster": cluster, "namespace": namespace}).one_or_none()
    if row is None:
        raise NotFound(
            f"no bundles of namespace {namespace} in cluster {cluster} are known; collect its reports first"
        )
    return _read(row._mapping)


def find_bundle_of(tx: Connection, cluster: str, topic: str) -> NamespaceBundle | None:
    """Return the bundle of a topic, by the stored boundaries. None if the namespace is not known. Raises InvalidInput for a text
    that is no topic name.
    """
    row = tx.execute(_GET, {"cluster": cluster, "namespace": namespace_of(topic)}).one_or_none()
    return None if row is None else _read(row._mapping).bundles.bundle_of(topic)


def split_policy_of(tx: Connection, cluster: str, namespace: str) -> SplitPolicy:
    """Return the split policy in force; the default policy if the namespace is not known, or if an older version left its overrides
    unreadable.
    """
    row = tx.execute(_GET, {"cluster": cluster, "namespace": namespace}).one_or_none()
    policy, _ = read_stored({} if row is None else row.split_settings)
    return policy


def list_namespaces(tx: Connection, cluster: str) -> list[NamespaceRow]:
    """Return all namespaces of the cluster, by name."""
    return [_read(row._mapping) for row in tx.execute(_LIST, {"cluster": cluster})]


def set_mode(
    tx: Connection, cluster: str, namespace: str, mode: BalancingMode, *, actor: str, seen_row_version: int
) -> NamespaceRow:
    """Set the mode of a namespace, store `actor` as the originator of the change, and return the new row. The row
    gets a new version even if the mode is the same as before.

    For mode approval, `proposals.ask` requests an approval for each proposal that is in the state proposed, is not
    stale and has no pending approval. The request covers all namespaces of the cluster with this mode. For any other
    mode, the pending approvals of the namespace's proposals become expired. The proposals keep their states.

    Raises NotFound if no report has named the namespace yet, and LostRace if the version of the row is not
    `seen_row_version`. Nothing is changed in either case.
    """
    row = _update(tx, cluster, namespace, seen_row_version, actor, mode=mode.value)
    if mode is BalancingMode.APPROVAL:
        bundle_proposals.ask(tx, cluster)
    else:
        bundle_proposals.stop_asking(tx, cluster, namespace, f"the mode of namespace {namespace} is {mode}")
    return row


def set_split_settings(
    tx: Connection,
    cluster: str,
    namespace: str,
    settings: Mapping[str, Any],
    *,
    actor: str,
    seen_row_version: int,
) -> NamespaceRow:
    """Replace all overrides of the namespace's split policy, and return the new row. The overrides are not checked here. Raises
    NotFound, or LostRace if the row has another version.
    """
    return _update(tx, cluster, namespace, seen_row_version, actor, split_settings=json.dumps(dict(settings)))


def set_boundaries(
    tx: Connection,
    cluster: str,
    namespace: str,
    boundaries: Sequence[int],
    *,
    actor: str,
    seen_row_version: int,
) -> NamespaceRow:
    """Store boundaries that were read from a broker, and return the new row. Raises NotFound, LostRace if the row has another version,
    and InvalidInput for boundaries that the schema refuses.
    """
    return _update(tx, cluster, namespace, seen_row_version, actor, boundaries=list(boundaries))


def _update(
    tx: Connection, cluster: str, namespace: str, seen_row_version: int, actor: str, **changes: object
) -> NamespaceRow:
    """Change the given columns of the namespace (`boundaries`, `mode`, `split_settings`; None keeps a column), store the actor,
    and return the new row. Boundaries, even unchanged ones, also set `boundaries_at`. Raises NotFound, LostRace if the row has
    another version, and InvalidInput for values that the schema refuses.
    """
    values: dict[str, object] = {"boundaries": None, "mode": None, "split_settings": None, **changes}
    key = {"cluster": cluster, "namespace": namespace, "seen": seen_row_version, "actor": actor}
    row = tx.execute(_UPDATE, values | key).one_or_none()
    if row is None:
        present = get_namespace(tx, cluster, namespace)
        raise LostRace(
            f"the bundles of namespace {namespace} are at version {present.row_version}, not {seen_row_version}; "
            "read them again and decide again",
            what="bundle-namespace",
        )
    return _read(row._mapping)


def _read(row: Mapping[Any, Any]) -> NamespaceRow:
    return NamespaceRow(**{**row, "boundaries": tuple(row["boundaries"]), "mode": BalancingMode(row["mode"])})
