"""Policies, read in the database."""

from __future__ import annotations

from collections.abc import Sequence

from controller.domain.policy import PolicyLevel
from controller.entrypoints.reach.port import Row
from controller.entrypoints.reading import reading
from controller.services import policy_admin
from controller.store.topics import inspected


class DirectPolicies:
    """See `port.Policies`."""

    def stored(self, level: str) -> Row:
        """See `port.Policies`."""
        kind = policy_admin.kind_of(level)
        with reading() as tx:
            if kind is PolicyLevel.TOPIC:
                inspected.find_topic(tx, level)
            return inspected.stored_policy(tx, kind, None if kind is PolicyLevel.CLUSTER else level)

    def in_force(self, topic: str) -> Sequence[Row]:
        """See `port.Policies`."""
        with reading() as tx:
            return inspected.effective_policy(tx, inspected.find_topic(tx, topic))
