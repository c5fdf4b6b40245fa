"""Subscriptions and who reads them, asked of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.client.servers import path_part, topic_path
from controller.entrypoints.reach.columns import SUBSCRIPTION
from controller.entrypoints.reach.over_http.calls import (
    LONGEST_WAIT_SECONDS,
    Calls,
    chosen,
    demand_ended,
    told,
)
from controller.entrypoints.reach.port import Changed, How, Row
from controller.store.topics.subscriptions import SubscriptionKind


@dataclass(frozen=True, slots=True)
class HttpSubscriptions:
    """See `port.Subscriptions`."""

    calls: Calls

    def list(self, topic: str) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        return [chosen(row, SUBSCRIPTION) for row in self.calls.every(f"{topic_path(topic)}/subscriptions")]

    def create(self, topic: str, subscription: str, how: How, *, kind: SubscriptionKind) -> Changed:
        """See `port.Subscriptions`."""
        return self.calls.intend("PUT", _path(topic, subscription), how, {"kind": kind.value})

    def delete(self, topic: str, subscription: str, how: How) -> Changed:
        """See `port.Subscriptions`."""
        return self.calls.intend("DELETE", _path(topic, subscription), how)

    def share(
        self,
        topic: str,
        subscription: str,
        *,
        parents_block: bool | None,
        drain_consumers: int | None,
        dry_run: bool,
    ) -> None:
        """See `port.Subscriptions`."""
        document = {"parents_block": parents_block, "drain_consumers": drain_consumers}
        self.calls.change("POST", f"{_path(topic, subscription)}/sharing", document, dry_run)

    def seek(
        self, topic: str, subscription: str, to: str, how: How, *, release_seconds: float | None
    ) -> Changed:
        """See `port.Subscriptions`."""
        document = {"to": to, "release_seconds": release_seconds}
        return self.calls.intend("POST", f"{_path(topic, subscription)}/seek", how, document)

    def give_up_seek(self, topic: str, subscription: str, how: How) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        waits = how.wait_seconds is not None and not how.dry_run
        wait = min(how.wait_seconds or 0.0, LONGEST_WAIT_SECONDS) if waits else None
        answer = self.calls.change(
            "DELETE",
            f"{_path(topic, subscription)}/seek",
            {"reason": how.reason},
            how.dry_run,
            wait_seconds=wait,
        )
        found: list[dict[str, Any]] = told(answer, "operations")
        if wait is None:
            return found
        left = (how.wait_seconds or 0.0) - wait
        return [demand_ended(self.calls.ended(one, left), how.wait_seconds or 0.0) for one in found]

    def cursors(self, topic: str, subscription: str) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        return self.calls.every(f"{_path(topic, subscription)}/cursors")


def _path(topic: str, subscription: str) -> str:
    return f"{topic_path(topic)}/subscriptions/{path_part(subscription)}"
