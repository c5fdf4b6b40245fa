"""Reading JSON as PostgreSQL keeps it: its numbers may be longer than Python turns into integers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from controller.domain.errors import InvalidInput
from controller.domain.shown import shown


def read_json(text: str) -> Any:
    """The value of a well-formed JSON text. Integers that Python does not read (4,300 digits) come as Decimal.

    Raises InvalidInput for a value that is nested too deeply to be read.
    """
    try:
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(text, parse_int=Decimal)
    except RecursionError as error:
        raise InvalidInput(
            f"a stored JSON value {shown(text)} is nested too deeply to be read; write it anew"
        ) from error
