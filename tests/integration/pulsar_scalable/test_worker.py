"""A worker beside a real Pulsar 5 broker: it mirrors what others do there, and splits what it was asked to split."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from controller.bootstrap import Application, build_worker
from controller.dataplane.pulsar_scalable import PulsarScalableDataPlane
from controller.domain.observed_consumers import SubscriptionUse
from controller.domain.reshape import ReshapeKind
from controller.services import segment_admin
from controller.settings import Settings
from controller.store.postgres.engine import Store
from controller.store.topics import observed_consumers, topics
from controller.store.topics.observed_consumers import Observation
from tests.integration.pulsar_scalable.conftest import PLANE, request
from tests.support.brokers import SharedBroker
from tests.support.waiting import wait_until


@pytest.fixture
def worker(database: str, store: Store, pulsar5_broker: SharedBroker) -> Iterator[None]:
    """At work in a thread."""
    settings = Settings(
        database_url=database,  # type: ignore[arg-type]  # pydantic makes the secret
        pulsar_admin_url=pulsar5_broker.admin_url,
        call_timeout_seconds=20.0,
        mirror_interval_seconds=0.2,
    )
    app = Application(settings, store)
    worker = build_worker(app)
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield
    worker.stop()
    thread.join()
    for plane in app.planes.values():
        plane.close()


def epoch(store: Store, topic: str) -> int:
    with store.transaction() as tx:
        return topics.find_topic(tx, topic).epoch


@pytest.mark.usefixtures("worker")
def test_it_follows_the_broker_and_runs_what_was_intended(
    store: Store, keeper: PulsarScalableDataPlane, attached: str
) -> None:
    keeper.ask_reshape(attached, ReshapeKind.SPLIT, [0], 1)
    wait_until(lambda: epoch(store, attached) == 1, message="the broker's own split is mirrored")

    segment_admin.submit(store, {PLANE: keeper}, attached, segment_admin.splitting(1), request("more"))
    wait_until(lambda: epoch(store, attached) == 2, message="the split asked for is done")
    assert keeper.read_layout(attached).epoch == 2


@pytest.mark.usefixtures("worker")
def test_the_ledger_keeps_where_a_split_would_have_been_cut_anywhere_else(
    store: Store, keeper: PulsarScalableDataPlane, attached: str
) -> None:
    with store.transaction() as tx:
        topic_id = topics.find_topic(tx, attached).topic_id
        uses = {"s": SubscriptionUse("Exclusive", 3, ("a", "b", "c"))}
        observed_consumers.record(tx, [Observation(topic_id, uses, is_whole=True)])

    wait_until(lambda: epoch(store, attached) == 1, message="a third consumer has a segment")
    with store.transaction() as tx:
        acts = tx.exec_driver_sql("SELECT decisions FROM cleave.decision WHERE decisions <> '[]'").scalars()
        [[act]] = acts
    assert (act["reason"], act["at"], act["otherwise"]) == ("consumer-count", [], [0x4000])
    assert [segment.hash_range.start for segment in keeper.read_layout(attached).active] == [
        0,
        0x4000,
        0x8000,
    ]
