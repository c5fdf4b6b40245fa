"""Pages of lists: encodes the keys of the last row of a page as the text that requests the next page."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown
from controller.domain.whole_numbers import MOST


def write_keys(keys: Sequence[Any]) -> str:
    """Return the text that requests the page after the row with these keys: text, integers, times or sequences of
    integers.
    """
    values = [key.isoformat() if isinstance(key, datetime) else key for key in keys]
    text = json.dumps(values, ensure_ascii=False)  # UTF-8 is shorter than escapes
    return base64.urlsafe_b64encode(text.encode()).decode("ascii").rstrip("=")


def read_keys(page: str, kinds: Sequence[type]) -> list[Any]:
    """Return the keys of the last row of the previous page, with their kinds: str, int, datetime, or a tuple of
    int. `page` is a text of `write_keys`.

    Raises InvalidInput for a text that is not a page of a list with keys of these kinds. Whether the list has a row
    with these keys is not checked.
    """
    try:
        padded = page + "=" * (-len(page) % 4)
        keys = json.loads(base64.urlsafe_b64decode(padded.encode("ascii")))
        if not isinstance(keys, list) or len(keys) != len(kinds):
            raise ValueError("other keys")
        return [_read_key(kind, key) for kind, key in zip(kinds, keys, strict=True)]
    except (ValueError, binascii.Error, RecursionError) as error:
        raise InvalidInput(
            f"page = {shown(page)} is not a page of this list; give the `next` of the previous page"
        ) from error


def _read_key(kind: type, key: Any) -> Any:
    """Return a key as read from JSON as a value of this kind: a text as a str or datetime, an integer as an int, a list
    of integers as a tuple. Raises ValueError for another kind, a time without a zone, or an integer beyond 64 bits.
    """
    if kind is datetime and isinstance(key, str):
        instant = datetime.fromisoformat(key)
        if instant.tzinfo is None:
            raise ValueError("no time zone")
        return instant
    if kind is tuple and isinstance(key, list):
        return tuple(_read_key(int, part) for part in key)
    if not isinstance(key, kind) or isinstance(key, bool) or (isinstance(key, int) and abs(key) > MOST):
        raise ValueError("another kind of key")
    return key
