"""Decides which approvals a request for a level of the policies may answer. Rights apply to a level, so a request must not reach beyond
its own.
"""

from __future__ import annotations

from controller.domain.names import CLUSTER


def covers(requested_level: str | None, level: str) -> bool:
    """Return True if a request for `requested_level` may answer an approval of `level`: the cluster covers every approval, a namespace
    (`tenant/namespace`) covers approvals of the namespace and of its topics, and a topic its own. A request without a level covers all
    approvals except approvals of the cluster.
    """
    if requested_level is None:
        return level != CLUSTER
    return requested_level in (CLUSTER, level) or level.startswith(f"topic://{requested_level}/")
