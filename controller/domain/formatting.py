"""Formats values for messages: on one line, short and printable, whatever the value."""

from __future__ import annotations

import re

_ACTIVE_IN_MARKDOWN = re.compile(r"[\\<`]|\](?=[(\[:])")
_LONGEST = 80
"""Maximum number of characters of a value in a message before the value is cut."""


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with each character that is not printable escaped as Python writes it: `\\x1b`, `\\u202e`. Then a
    terminal does not interpret any character, and a reader sees all of them. `lines`: ends of lines are kept.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or (lines and char == "\n") else char.encode("unicode_escape").decode()
        for char in text
    )


def in_markdown(text: str) -> str:
    """Return the text escaped so that Markdown makes no link, image, code or HTML of it. Airflow renders notes and
    questions as Markdown. Characters that are not printable are escaped as in `printable`; ends of lines are kept.
    """
    return _ACTIVE_IN_MARKDOWN.sub(r"\\\g<0>", printable(text, lines=True))


def shown(value: object) -> str:
    """Return `repr(value)` for a message. A repr of more than 80 characters is cut to its first 60 characters, and its
    length is added. A value that is nested too deeply, or an integer with too many digits to write, is described
    instead; of a list with such an integer, only the first four elements are shown. Never raises for a value that JSON
    can hold.
    """
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    except ValueError:  # Python writes no integer of more than 4,300 digits
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        if not isinstance(value, list | tuple):
            return f"a {type(value).__name__}"
        text = f"[{', '.join(map(shown, value[:4]))}]"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}… ({len(text)} characters)"


def exact(value: object) -> object:
    """Return a float as the shortest text that reads back as the same number, for tables, which round floats. Other
    values are returned unchanged.
    """
    return repr(value) if isinstance(value, float) else value


def counted(number: int, noun: str) -> str:
    """Return the number with the noun in singular or plural: `no rows`, `1 row`, `2 rows`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return the duration as text, in the largest unit of which there are at least two (days, hours, minutes),
    rounded to whole units; otherwise in seconds.
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
