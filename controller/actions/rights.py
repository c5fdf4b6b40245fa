"""The rights that calls demand. Roles give them: `controller.web.access`."""

from __future__ import annotations

from enum import StrEnum


class Right(StrEnum):
    """A right that a route demands."""

    LOOK_UP = "look up"
    CONSUME = "consume"
    READ = "read"
    OPERATE = "operate"
    ADMINISTER = "administer"
    WRITE_LOAD = "write load"
