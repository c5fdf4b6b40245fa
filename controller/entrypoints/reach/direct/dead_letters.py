"""Dead letters, by the database and the data plane themselves."""

from __future__ import annotations

from controller.bootstrap import application
from controller.entrypoints import dead_letter_desk
from controller.entrypoints.dead_letter_desk import Letters


class DirectDeadLetters:
    """See `port.DeadLetters`."""

    def look(self, topic: str, subscription: str, limit: int) -> Letters:
        """See `port.DeadLetters`."""
        with application() as cleave:
            return dead_letter_desk.look(cleave, topic, subscription, limit)
