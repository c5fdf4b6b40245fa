"""Reads JSON that PostgreSQL stored, whose numbers may have more digits than Python converts to integers."""

from __future__ import annotations

import json
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.formatting import shown


def read_json(text: str) -> Any:
    """Return the value of a well-formed JSON text. An integer of more than 4,300 digits, which Python does not convert, becomes the text of
    its digits, which can be written as JSON again.

    Raises InvalidInput if the value is nested too deeply to be read.
    """
    try:
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(text, parse_int=_integer)
    except RecursionError as error:
        raise InvalidInput(
            f"the stored JSON value {shown(text)} is nested too deeply to be read; replace the value"
        ) from error


def _integer(digits: str) -> int | str:
    """Return the integer; the digits themselves if they are too many for Python."""
    try:
        return int(digits)
    except ValueError:
        return digits
