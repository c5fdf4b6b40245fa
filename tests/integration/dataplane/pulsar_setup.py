"""Cleave on a real Pulsar: a database, a namespace and the `cleave` command, all of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulsar
import requests
from sqlalchemy import text

from controller.bootstrap import Application
from controller.client.producer import Producer
from controller.dataplane.base import LogState
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.domain.layout import SegmentLayout
from controller.services.reconciler import Finding, reconcile
from controller.store.topics import layouts, topics
from tests.support.command_line import CommandLine


@dataclass
class PulsarSetup:
    """What the tests look at and act with, beside the command line."""

    cleave: CommandLine
    app: Application
    access: PulsarAccess
    namespace: str

    @property
    def topic(self) -> str:
        """The one topic of the test."""
        return f"topic://{self.namespace}/orders"

    @property
    def topic_id(self) -> int:
        """Its id."""
        with self.app.store.transaction() as tx:
            return topics.find_topic(tx, self.topic).topic_id

    @property
    def layout(self) -> SegmentLayout:
        """Its layout now."""
        with self.app.store.transaction() as tx:
            return layouts.load_layout(tx, self.topic_id)

    @property
    def ranges(self) -> list[str]:
        """Active ranges in order."""
        return [str(segment.hash_range) for segment in self.layout.active]

    def create(self, segments: int = 1, *subscriptions: str) -> None:
        """The topic, by the command line."""
        self.cleave.ok("topics", "create", self.topic, "--data-plane", "pulsar", "--segments", str(segments))
        for name in subscriptions:
            self.cleave.ok("subscriptions", "create", self.topic, name)

    def send_rounds(
        self,
        producer: Producer,
        keys: Sequence[str],
        rounds: int,
        split_after: int,
        merge_after: int | None = None,
    ) -> None:
        """Send each number below `rounds` with each key. Split the only segment after one number, and merge its children after another."""
        for number in range(rounds):
            for key in keys:
                producer.send(b"%d" % number, key)
            producer.flush()
            if number == split_after:
                self.cleave.ok("segments", "split", self.topic, "0")
            if number == merge_after:
                self.cleave.ok("segments", "merge", self.topic, "1", "2")

    def log_of(self, segment_id: int) -> str:
        """The Pulsar topic behind a segment."""
        return str(
            self.scalar(
                "SELECT backing_topic FROM cleave.segment WHERE topic_id = :topic AND segment_id = :segment",
                topic=self.topic_id,
                segment=segment_id,
            )
        )

    def states(self, *segment_ids: int) -> list[LogState]:
        """What the broker says of their topics."""
        return [self.app.planes["pulsar"].segment_state(self.log_of(one)) for one in segment_ids]

    def cursors(self, segment_id: int) -> Sequence[str]:
        """Subscriptions on a segment's topic."""
        return self.app.planes["pulsar"].list_subscriptions(self.log_of(segment_id))

    def reconcile(self) -> list[Finding]:
        """One comparison, with its remedies."""
        return list(reconcile(self.app.store, self.app.planes, self.topic_id))

    def scalar(self, statement: str, **parameters: object) -> Any:
        """One value from the database."""
        with self.app.store.transaction() as tx:
            return tx.execute(text(statement), parameters).scalar_one()

    def client(self) -> pulsar.Client:
        """An application's own, which knows nothing of Cleave; the caller closes it."""
        return pulsar.Client(self.access.service_url)

    def admin(self, method: str, path: str, **options: Any) -> requests.Response:
        """A call as Pulsar's own tools make it; `path` comes behind `/admin/v2/`."""
        answer = requests.request(
            method, f"{self.access.admin_urls[0]}/admin/v2/{path}", timeout=30, **options
        )
        answer.raise_for_status()
        return answer
