"""Topics and layouts, read and changed in the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from controller.bootstrap import Application, application
from controller.domain.layout import SegmentLayout
from controller.entrypoints import adoption_desk
from controller.entrypoints.adoption_desk import Adoption, PlannedAdoption
from controller.entrypoints.output import recovery_document
from controller.entrypoints.pictures import HOT_KEYS
from controller.entrypoints.reach.columns import TOPIC
from controller.entrypoints.reach.direct.changes import change
from controller.entrypoints.reach.port import Changed, FoundTopic, How, Row
from controller.entrypoints.reading import reading
from controller.entrypoints.rehearsal import stage
from controller.entrypoints.running import user_name
from controller.services import reconciler, topic_admin
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from controller.store.postgres import inspection
from controller.store.postgres.engine import Store
from controller.store.topics import inspected

LIST = f"""
    SELECT {", ".join(TOPIC)} FROM inspect.topics
     WHERE state <> 'deleted' AND starts_with(topic, :prefix) AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
     ORDER BY topic LIMIT :limit
"""  # noqa: S608 - constants only
_NAMESPACES = """
    SELECT DISTINCT namespace FROM inspect.topics
     WHERE state <> 'deleted' AND starts_with(namespace, :prefix) ORDER BY namespace LIMIT :limit
"""
_HOT_KEYS = f"{HOT_KEYS} ORDER BY segment_id"


class DirectTopics:
    """See `port.Topics`."""

    def list(self, *, namespace: str | None, prefix: str, limit: int) -> Sequence[Row]:
        """See `port.Topics`."""
        with reading() as tx:
            return inspection.rows(tx, LIST, namespace=namespace, prefix=prefix, limit=limit)

    def namespaces(self, *, prefix: str, limit: int) -> Sequence[Row]:
        """See `port.Topics`."""
        with reading() as tx:
            return inspection.rows(tx, _NAMESPACES, prefix=prefix, limit=limit)

    def hot_keys(self, topic: str) -> Sequence[Row]:
        """See `port.Topics`."""
        with reading() as tx:
            return inspection.rows(tx, _HOT_KEYS, topic=inspected.find_topic(tx, topic).name)

    def find(self, topic: str) -> FoundTopic:
        """See `port.Topics`."""
        with reading() as tx:
            row = inspected.find_topic(tx, topic)
            layout = inspected.load_layout(tx, row)
        return FoundTopic(row.name, row.state, row.data_plane, row.properties, layout)

    def layout(self, topic: str, at: int | datetime | None) -> SegmentLayout:
        """See `port.Topics`."""
        with reading() as tx:
            row = inspected.find_topic(tx, topic)
            return inspected.load_layout(tx, row) if at is None else inspected.layout_at(tx, row, at)

    def create(
        self, topic: str, how: How, *, segments: int, data_plane: str, properties: Mapping[str, str]
    ) -> Changed:
        """See `port.Topics`."""
        return change(
            lambda cleave, store, request: topic_admin.create_topic(
                store,
                cleave.planes,
                topic,
                request,
                data_plane=data_plane,
                segments=segments,
                properties=properties,
            ),
            how,
        )

    def delete(self, topic: str, how: How) -> Changed:
        """See `port.Topics`."""
        return change(lambda _, store, request: topic_admin.delete_topic(store, topic, request), how)

    def adopt(self, asked: Adoption, how: How) -> tuple[Changed, PlannedAdoption | None]:
        """See `port.Topics`."""
        planned: list[PlannedAdoption] = []

        def act(cleave: Application, store: Store, request: Request) -> Intent:
            intent, plan = adoption_desk.adopt(cleave, store, asked, request, dry_run=how.dry_run)
            planned.append(plan)
            return intent

        changed = change(act, how)
        return changed, planned[0] if how.dry_run else None

    def attach(self, topic: str, how: How, *, data_plane: str) -> tuple[Changed, Sequence[Row] | None]:
        """See `port.Topics`."""
        on_broker: list[Row] = []

        def act(cleave: Application, store: Store, request: Request) -> Intent:
            intent = topic_admin.attach_topic(store, cleave.planes, topic, request, data_plane=data_plane)
            if how.dry_run:
                on_broker.extend(adoption_desk.layout_on_broker(cleave, topic, data_plane))
            return intent

        changed = change(act, how)
        return changed, on_broker if how.dry_run else None

    def detach(self, topic: str, how: How) -> Changed:
        """See `port.Topics`."""
        return change(lambda _, store, request: topic_admin.detach_topic(store, topic, request), how)

    def recover(self, topic: str, *, data_plane: str | None, dry_run: bool) -> Row:
        """Implements `port.Topics.recover`."""
        with application() as cleave, stage(cleave, dry_run) as store:
            return recovery_document(
                reconciler.recover(
                    store, cleave.planes, topic, actor=user_name(), data_plane=data_plane, dry_run=dry_run
                )
            )
