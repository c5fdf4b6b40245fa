"""Converts metadata of a message to the JSON object that the embedded logs store, and back.

Any login of an application may have written the object, so an object that is not metadata counts as none.
"""

from __future__ import annotations

import json

from controller.dataplane.log_client import Metadata


def written(metadata: Metadata | None) -> str | None:
    """Return the JSON text to store: an object with the keys `properties` (an object; the last of equal names
    counts), `event_time_ms` and `is_binary_key`, without values that are empty, 0 or False. None for a
    message without metadata.
    """
    if metadata is None:
        return None
    document = {
        "properties": dict(metadata.properties),
        "event_time_ms": metadata.event_time_ms,
        "is_binary_key": metadata.is_binary_key,
    }
    return json.dumps({name: value for name, value in document.items() if value})


def read(stored: str | None) -> Metadata | None:
    """Return the metadata that a stored JSON text describes, an object with the keys that `written` writes. None if
    `stored` is None, is not an object, or is JSON that Python cannot decode: a number of thousands of digits, or lists
    in thousands of lists. Raises nothing.

    A property whose value is not a text is left out. The metadata has no properties if `properties` is missing or not
    an object, no event time if `event_time_ms` is missing or not an integer, and no binary key if `is_binary_key` is
    missing or anything but true.
    """
    if stored is None:
        return None
    try:
        document = json.loads(stored)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    properties, event_time_ms = document.get("properties"), document.get("event_time_ms")
    pairs = properties.items() if isinstance(properties, dict) else ()
    return Metadata(
        tuple((name, value) for name, value in pairs if isinstance(value, str)),
        event_time_ms if isinstance(event_time_ms, int) and not isinstance(event_time_ms, bool) else None,
        document.get("is_binary_key") is True,
    )
