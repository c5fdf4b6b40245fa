"""A worker on a real broker: it makes, splits and heals what others ask for, and its reconciler looks there."""

from __future__ import annotations

import secrets

import pytest

from controller.bootstrap import application
from controller.dataplane.base import LogState
from controller.dataplane.pulsar.cluster_access import PulsarAccess
from controller.domain.operation import Operation, Origin
from controller.services import segment_admin, topic_admin
from controller.services.operation_wait import wait_for
from controller.services.reconciler import FindingKind, reconcile
from controller.settings import Settings
from controller.store.journal.operations import Request
from controller.store.journal.request_keys import Intent
from tests.integration.conftest import StartWorker
from tests.support.brokers import SharedBroker
from tests.support.pulsar_namespaces import make_namespace


def request() -> Request:
    """A person's request, with a key of its own."""
    return Request(f"test-{secrets.token_hex(8)}", Origin.MANUAL, "ada", "test")


@pytest.mark.timeout(300)
def test_it_creates_splits_and_heals_there(
    start_worker: StartWorker, database: str, pulsar_broker: SharedBroker
) -> None:
    access = PulsarAccess(admin_url=pulsar_broker.admin_url)
    topic = f"topic://{make_namespace(access, f'worker-{secrets.token_hex(4)}')}/orders"
    start_worker("w1", pulsar_admin_url=access.admin_url, call_timeout_seconds=25)
    settings = Settings(database_url=database, pulsar_admin_url=access.admin_url, call_timeout_seconds=25)  # type: ignore[arg-type]
    with application(settings) as cleave:

        def done(intent: Intent) -> Operation:
            operation = wait_for(cleave.store, intent.operation.operation_id, 120.0)
            assert operation.state == "done"
            return operation

        plane = cleave.planes["pulsar"]
        created = done(
            topic_admin.create_topic(cleave.store, cleave.planes, topic, request(), data_plane="pulsar")
        )
        split = done(
            segment_admin.submit(
                cleave.store,
                cleave.planes,
                topic,
                segment_admin.splitting(0),
                request(),
            )
        )
        left, right = (child.backing_topic for child in split.children)
        assert [plane.segment_state(log) for log in (*split.parent_topics, left, right)] == [
            LogState.TERMINATED,
            LogState.OPEN,
            LogState.OPEN,
        ]

        plane.terminate_segment(left)  # somebody with a command of Pulsar's
        [finding] = reconcile(cleave.store, cleave.planes, created.topic_id)
        assert finding.kind is FindingKind.ACTIVE_TERMINATED
        assert finding.operation_id is not None
        healed = wait_for(cleave.store, finding.operation_id, 120.0)
        assert [plane.segment_state(child.backing_topic) for child in healed.children] == [LogState.OPEN]
        assert reconcile(cleave.store, cleave.planes, created.topic_id) == ()
