"""Policies, asked of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.client.servers import path_part, topic_path
from controller.entrypoints.reach.over_http.calls import API, Calls, told
from controller.entrypoints.reach.port import ChangedLevel, Row

_CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class HttpPolicies:
    """See `port.Policies`."""

    calls: Calls

    def stored(self, level: str) -> Row:
        """See `port.Policies`."""
        return dict(told(self.calls.get(_path(level)), "knobs"))

    def change(self, level: str, knobs: Mapping[str, Any], *, replace: bool, dry_run: bool) -> ChangedLevel:
        """See `port.Policies`."""
        how = "replace" if replace else "patch"
        found = self.calls.change("POST", _path(level), dict(knobs), dry_run, how=how)
        return ChangedLevel(told(found, "before"), told(found, "after"))

    def in_force(self, topic: str) -> Sequence[Row]:
        """See `port.Policies`."""
        return list(told(self.calls.get(f"{topic_path(topic)}/policy"), "knobs"))


def _path(level: str) -> str:
    if level == _CLUSTER:
        return f"{API}/policies/cluster"
    if "://" in level:
        return topic_path(level).replace(f"{API}/topics/", f"{API}/policies/topics/", 1)
    return f"{API}/policies/namespaces/{'/'.join(path_part(part) for part in level.split('/'))}"
