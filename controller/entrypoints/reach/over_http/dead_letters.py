"""Dead letters, asked of a server: a part of them with each call."""

from __future__ import annotations

from dataclasses import dataclass

from controller.client.servers import path_part, topic_path
from controller.entrypoints.dead_letter_desk import Letters
from controller.entrypoints.reach.over_http.calls import PAGE, Calls, told, with_instants
from controller.entrypoints.reach.port import Row


@dataclass(frozen=True, slots=True)
class HttpDeadLetters:
    """See `port.DeadLetters`."""

    calls: Calls

    def look(self, topic: str, subscription: str, limit: int) -> Letters:
        """See `port.DeadLetters`."""
        rows: list[Row] = []
        page = None
        while True:
            found = self.calls.get(_path(topic, subscription), limit=min(PAGE, limit - len(rows)), page=page)
            rows += map(with_instants, told(found, "items"))
            page = told(found, "next")
            if page is None or len(rows) >= limit:
                return Letters(told(found, "log"), told(found, "count"), rows)


def _path(topic: str, subscription: str) -> str:
    return f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/dead-letters"
