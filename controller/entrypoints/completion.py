"""What a shell offers while a command is typed: topics, levels of policy, knobs, data planes.

A shell waits for the answer, and has no place for a message: whatever goes wrong, nothing is offered.
"""

from __future__ import annotations

from controller.dataplane.registry import PLANE_NAMES
from controller.domain.policy import KNOBS

MOST = 100
"""Names offered at once; more help nobody."""
_SCHEME = "topic://"
_TOPICS = """
    SELECT topic FROM inspect.topics
     WHERE state <> 'deleted' AND starts_with(topic, :prefix) ORDER BY topic LIMIT :limit
"""
_NAMESPACES = """
    SELECT DISTINCT namespace FROM inspect.topics
     WHERE state <> 'deleted' AND starts_with(namespace, :prefix) ORDER BY namespace LIMIT :limit
"""


def topics(incomplete: str) -> list[str]:
    """Topics by the names they have, with or without `topic://` as it was begun: in bash a colon parts words."""
    scheme = _SCHEME if incomplete.startswith(_SCHEME) else ""
    prefix = _SCHEME + incomplete.removeprefix(_SCHEME)
    return [scheme + name.removeprefix(_SCHEME) for name in _asked(_TOPICS, prefix)]


def levels(incomplete: str) -> list[str]:
    """The cluster, namespaces, topics."""
    cluster = [one for one in ("cluster",) if one.startswith(incomplete)]
    return [*cluster, *_asked(_NAMESPACES, incomplete), *topics(incomplete)]


def knobs(incomplete: str) -> list[str]:
    """Knobs, ready for their value."""
    return [f"{knob}=" for knob in KNOBS if knob.startswith(incomplete)]


def planes(incomplete: str) -> list[str]:
    """Data planes that there are, configured here or not."""
    return [plane for plane in PLANE_NAMES if plane.startswith(incomplete)]


def _asked(statement: str, prefix: str) -> list[str]:
    try:
        from controller.entrypoints.reading import reading
        from controller.store.postgres import inspection

        with reading() as tx:
            rows = inspection.rows(tx, statement, prefix=prefix, limit=MOST)
        return [str(value) for row in rows for value in row.values()]
    except Exception:  # noqa: BLE001 - a shell in the middle of a line can do nothing with it
        return []
