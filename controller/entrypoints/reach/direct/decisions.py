"""The ledger, read in the database, and topics as they would be decided on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.bootstrap import application
from controller.domain.situation import Situation
from controller.services import what_if


class DirectDecisions:
    """See `port.Decisions`."""

    def situations(self, topic: str, changes: Mapping[str, Any]) -> tuple[Situation, Situation]:
        """See `port.Decisions`."""
        with application() as cleave:
            return what_if.situations_of(cleave.store, cleave.planes, topic, changes)
