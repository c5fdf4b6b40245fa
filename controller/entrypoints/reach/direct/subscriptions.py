"""Subscriptions, read and changed in the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from controller.bootstrap import application
from controller.domain.seek_target import SeekTarget, parse_seek_target
from controller.entrypoints.output import operation_document
from controller.entrypoints.reach.columns import SUBSCRIPTION
from controller.entrypoints.reach.direct.changes import change
from controller.entrypoints.reach.port import Changed, How, Row
from controller.entrypoints.reading import reading
from controller.entrypoints.rehearsal import stage
from controller.entrypoints.running import run_to_its_end, user_name
from controller.services import topic_admin
from controller.store.postgres import inspection
from controller.store.topics import inspected, subscriptions, topics
from controller.store.topics.subscriptions import SubscriptionKind

_OF_TOPIC = (
    f"SELECT {', '.join(SUBSCRIPTION)} FROM inspect.subscriptions WHERE topic_id = :t ORDER BY subscription"  # noqa: S608
)


class DirectSubscriptions:
    """See `port.Subscriptions`."""

    def list(self, topic: str) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        with reading() as tx:
            return inspection.rows(tx, _OF_TOPIC, t=inspected.find_topic(tx, topic).topic_id)

    def create(self, topic: str, subscription: str, how: How, *, kind: SubscriptionKind) -> Changed:
        """See `port.Subscriptions`."""
        return change(
            lambda _, store, request: topic_admin.create_subscription(
                store, topic, subscription, request, kind=kind
            ),
            how,
        )

    def delete(self, topic: str, subscription: str, how: How) -> Changed:
        """See `port.Subscriptions`."""
        return change(
            lambda _, store, request: topic_admin.delete_subscription(store, topic, subscription, request),
            how,
        )

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
        with application() as cleave, stage(cleave, dry_run) as store, store.transaction() as tx:
            subscriptions.set_sharing(
                tx,
                topics.find_topic(tx, topic).topic_id,
                subscription,
                parents_block=parents_block,
                drain_consumers=drain_consumers,
            )

    def seek(
        self, topic: str, subscription: str, to: str, how: How, *, release_seconds: float | None
    ) -> Changed:
        """See `port.Subscriptions`."""
        target: SeekTarget = parse_seek_target(to)
        return change(
            lambda cleave, store, request: topic_admin.seek_subscription(
                store,
                topic,
                subscription,
                target,
                request,
                release_seconds=cleave.settings.consumer_grace_seconds
                if release_seconds is None
                else release_seconds,
            ),
            how,
        )

    def give_up_seek(self, topic: str, subscription: str, how: How) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        with application() as cleave, stage(cleave, how.dry_run) as store:
            found = topic_admin.give_up_seek(store, topic, subscription, actor=user_name(), reason=how.reason)
            if how.wait_seconds is not None and not how.dry_run:
                found = [run_to_its_end(cleave, one.operation_id, how.wait_seconds) for one in found]
        return [operation_document(one) for one in found]

    def cursors(self, topic: str, subscription: str) -> Sequence[Row]:
        """See `port.Subscriptions`."""
        with application() as cleave:
            found = topic_admin.what_a_seek_moves(cleave.store, cleave.planes, topic, subscription)
        return [asdict(one) for one in found]
