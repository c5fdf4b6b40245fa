"""Dead letters, asked of a server: a part of them with each call."""

from __future__ import annotations

from dataclasses import dataclass

from controller.client.servers import path_part, topic_path
from controller.entrypoints.dead_letter_desk import Letters, Redriven
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

    def redrive(self, topic: str, subscription: str, limit: int | None, *, dry_run: bool) -> Redriven:
        """See `port.DeadLetters`. Ends when as many were put back as there were, or are asked for."""
        due, done = limit, 0
        while True:
            size = PAGE if due is None else min(PAGE, due - done)
            path = f"{_path(topic, subscription)}/redrive"
            found = self.calls.change("POST", path, None, dry_run, limit=size)
            messages, left = told(found, "messages"), told(found, "left")
            if dry_run:
                return _all_of(messages + left, limit)
            if due is None:
                due = messages + left
            done += messages
            if not messages or not left or done >= due:
                return Redriven(done, left)


def _all_of(count: int, limit: int | None) -> Redriven:
    would = count if limit is None else min(count, limit)
    return Redriven(would, count - would)


def _path(topic: str, subscription: str) -> str:
    return f"{topic_path(topic)}/subscriptions/{path_part(subscription)}/dead-letters"
