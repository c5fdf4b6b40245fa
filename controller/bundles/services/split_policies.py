"""Reads and changes the split policy of a namespace.

Changes are checked together with the remaining parameters, and stored with the namespace. The next cycle uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.bundles.domain.splitting.policy import SplitPolicy
from controller.bundles.store import namespaces as bundle_namespaces
from controller.store.postgres.engine import Store


@dataclass(frozen=True, slots=True)
class PolicyOfNamespace:
    """All parameters in force (`effective`), and the parameters that the namespace sets (`overrides`)."""

    namespace: str
    effective: Mapping[str, Any]
    overrides: Mapping[str, Any]


def stored_split_policy(store: Store, cluster: str, namespace: str) -> PolicyOfNamespace:
    """Return the split policy in force. Raises NotFound if no report has named the namespace; InvalidPolicy for parameters that an older
    version left unreadable.
    """
    with store.transaction() as tx:
        return _policy(namespace, bundle_namespaces.get_namespace(tx, cluster, namespace).split_settings)


def change_split_policy(
    store: Store,
    cluster: str,
    namespace: str,
    changes: Mapping[str, Any],
    *,
    actor: str,
    replace: bool = False,
) -> PolicyOfNamespace:
    """Set these parameters of the namespace's split policy. Null removes a parameter, and `replace` removes all parameters that are not in
    `changes`. Return the policy in force.

    Writes nothing if the parameters do not change. Raises NotFound if no report has named the namespace; InvalidPolicy for parameters that
    are unknown (unless null), of a wrong type or not valid together, and for one that an older version left unreadable, unless null or
    `replace` removes it; LostRace if the row changed at the same time.
    """
    with store.transaction() as tx:
        row = bundle_namespaces.get_namespace(tx, cluster, namespace)
        document = {**({} if replace else row.split_settings), **changes}
        overrides = {parameter: value for parameter, value in document.items() if value is not None}
        policy = _policy(namespace, overrides)
        if overrides != row.split_settings:
            bundle_namespaces.set_split_settings(
                tx, cluster, namespace, overrides, actor=actor, seen_row_version=row.row_version
            )
    return policy


def _policy(namespace: str, overrides: Mapping[str, Any]) -> PolicyOfNamespace:
    return PolicyOfNamespace(namespace, SplitPolicy.from_document(overrides).to_document(), overrides)
