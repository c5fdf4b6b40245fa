"""The rights that calls require. `controller.web.access` maps roles to rights."""

from __future__ import annotations

from enum import StrEnum


class Right(StrEnum):
    """A right that a route requires."""

    LOOK_UP = "look up"
    CONSUME = "consume"
    READ = "read"
    OPERATE = "operate"
    ADMINISTER = "administer"
    WRITE_LOAD = "write load"
