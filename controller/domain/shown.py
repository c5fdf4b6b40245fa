"""A value as it stands in a message: on one line and short, whatever was given."""

from __future__ import annotations

_LONGEST = 80
"""Characters of a value that a message holds; a longer one is cut."""


def shown(value: object) -> str:
    """Like `repr`, cut to 80 characters. Never raises for what JSON can hold, integers of any length included."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}… ({len(text)} characters)"
