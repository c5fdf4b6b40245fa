"""Metadata of a message as a JSON object, in which the embedded logs keep it.

Any login of an application may have written the object, so that what is no metadata counts as none.
"""

from __future__ import annotations

import json

from controller.dataplane.base import Metadata


def written(metadata: Metadata | None) -> str | None:
    """Return the object as it is stored; None for a message without metadata."""
    if metadata is None:
        return None
    document = {
        "properties": dict(metadata.properties),
        "event_time_ms": metadata.event_time_ms,
        "is_binary_key": metadata.is_binary_key,
    }
    return json.dumps({name: value for name, value in document.items() if value})


def read(document: object) -> Metadata | None:
    """Return the metadata of a stored object."""
    if not isinstance(document, dict):
        return None
    found, at = document.get("properties"), document.get("event_time_ms")
    pairs = found.items() if isinstance(found, dict) else ()
    return Metadata(
        tuple((name, value) for name, value in pairs if isinstance(value, str)),
        at if isinstance(at, int) and not isinstance(at, bool) else None,
        document.get("is_binary_key") is True,
    )
