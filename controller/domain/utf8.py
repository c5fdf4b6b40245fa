"""Text that leaves as bytes: keys that are hashed, names and values that are stored.

Python's text may hold half of a surrogate pair: JSON carries one as `"\\ud800"`, and an argument of a command that is not
UTF-8 arrives so. No UTF-8 stands for it, and a library in C may not survive it.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown


def utf8(text: str, what: str) -> bytes:
    """The bytes of `text`; InvalidInput, naming `what` it is, where a lone surrogate leaves it without any."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        odd = error.object[error.start]
        raise InvalidInput(
            f"{what} {shown(text)} holds {odd!r}, half of a surrogate pair, which has no UTF-8 form; leave it out, or "
            "give bytes where bytes are taken"
        ) from error


def demand_utf8(value: object, what: str) -> None:
    """Raise InvalidInput for a lone surrogate in a text, or in a name or text within lists and objects, of any depth."""
    held = [value]
    while held:
        one = held.pop()
        if isinstance(one, str):
            utf8(one, what)
        elif isinstance(one, Mapping):
            held += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            held += one
