"""A value as it stands in a message: on one line and short, whatever was given."""

from __future__ import annotations

_LONGEST = 80
"""Characters of a value that a message holds; a longer one is cut."""


def shown(value: object) -> str:
    """Like `repr`, cut to 80 characters. Never raises for what JSON can hold, integers of any length included."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        if not isinstance(value, list | tuple):
            return f"a {type(value).__name__}"
        text = f"[{', '.join(map(shown, value[:4]))}]"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}… ({len(text)} characters)"
