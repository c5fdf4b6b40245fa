"""Names and reasons as fields of pydantic models, by the rules of `domain.names`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from controller.domain.errors import InvalidInput
from controller.domain.names import LONGEST_REASON, demand_name, demand_reason


def name_of(kind: str) -> AfterValidator:
    """Demand that the text is a name of this kind."""
    return _field(partial(demand_name, kind))


def _field(demand: Callable[[str], str]) -> AfterValidator:
    def checked(text: str) -> str:
        try:
            return demand(text)
        except InvalidInput as error:  # pydantic expects a ValueError
            raise ValueError(error.message) from error

    return AfterValidator(checked)


Reason = Annotated[
    str, Field(min_length=1, max_length=LONGEST_REASON), _field(partial(demand_reason, "reason"))
]
"""A reason that a person gives."""
