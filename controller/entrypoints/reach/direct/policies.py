"""Policies, read and changed in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.actions.dry_run import stage
from controller.actions.waiting import user_name
from controller.bootstrap import application
from controller.domain.policy import PolicyLevel
from controller.entrypoints.reach.port import ChangedLevel, Row
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

    def change(self, level: str, knobs: Mapping[str, Any], *, replace: bool, dry_run: bool) -> ChangedLevel:
        """See `port.Policies`. In the name of whoever runs this process."""
        with application() as cleave, stage(cleave, dry_run) as store:
            changed = policy_admin.change(
                store,
                level,
                lambda before: {**({} if replace else before), **knobs},
                actor=user_name(),
            )
        return ChangedLevel(changed.before, changed.after)

    def in_force(self, topic: str) -> Sequence[Row]:
        """See `port.Policies`."""
        with reading() as tx:
            return inspected.effective_policy(tx, inspected.find_topic(tx, topic))
