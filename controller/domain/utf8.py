"""Checks text that is converted to bytes: keys that are hashed, names and values that are stored.

Python's text may contain half of a surrogate pair: JSON can contain one as `"\\ud800"`, and a command argument that
is not UTF-8 is decoded to one. It has no UTF-8 form, and a library in C may crash on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown

_NUMBERS = (int, float)
"""Checked first, because a list may have many numbers and the check for a Mapping is slow."""


def utf8(text: str, subject: str) -> bytes:
    """Return the bytes of `text`. Raises InvalidInput for a lone surrogate, which has no UTF-8 form; the message
    names the text as `subject`.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise InvalidInput(
            f"{subject} {shown(text)} contains {surrogate!r}, half of a surrogate pair, which has no UTF-8 form; leave it out, or "
            "give bytes where bytes are taken"
        ) from error


def demand_utf8(value: object, subject: str) -> None:
    """Raise InvalidInput, which names the value as `subject`, for a lone surrogate in a text, or in a name or text
    within lists and objects, of any depth.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            utf8(item, subject)
        elif isinstance(item, _NUMBERS):
            continue
        elif isinstance(item, Mapping):
            pending += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            pending += item
