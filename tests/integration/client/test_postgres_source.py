"""What a client writes into Cleave's tables: its own session, and marks of what it has read to the end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from controller.client.postgres_source import PostgresSource
from controller.domain.errors import Conflict, TopicNotLive
from controller.services import garbage_collector, topic_admin
from controller.services.segment_admin import splitting
from controller.store.topics import topics
from tests.support.bench import TOPIC, Bench
from tests.support.store_driver import SOMEBODY_WAITS
from tests.support.waiting import wait_until


def marked(bench: Bench) -> int:
    """Marks there are."""
    return int(bench.scalar("SELECT count(*) FROM cleave.segment_drain"))


def test_only_a_sealed_segment_is_marked_as_drained(bench: Bench, source: PostgresSource) -> None:
    topic_id = bench.topic_with()

    source.mark_drained(topic_id, "billing", 0)
    assert marked(bench) == 0

    bench.reshape(splitting(0))
    source.mark_drained(topic_id, "billing", 0)
    source.mark_drained(topic_id, "billing", 0)
    assert marked(bench) == 1


def test_what_is_pruned_is_marked_no_more(bench: Bench, source: PostgresSource) -> None:
    topic_id = bench.topic_with()
    bench.reshape(splitting(0))
    [operation_id] = garbage_collector.collect(bench.store, bench.planes, retention_minutes=0).operation_ids
    bench.drive(operation_id)
    bench.execute("DELETE FROM cleave.segment_drain")

    source.mark_drained(topic_id, "billing", 0)

    assert marked(bench) == 0


def test_a_mark_waits_for_whoever_holds_the_topic(bench: Bench, source: PostgresSource) -> None:
    """What is found drained while pruning stays so until the prune is committed."""
    topic_id = bench.topic_with()
    bench.reshape(splitting(0))
    with ThreadPoolExecutor(1) as pool:
        with bench.store.transaction() as tx:
            topics.get_topic(tx, topic_id, lock=True)
            marking = pool.submit(source.mark_drained, topic_id, "billing", 0)
            wait_until(
                lambda: marking.done() or bench.scalar(f"SELECT EXISTS ({SOMEBODY_WAITS})"),
                message="the mark waits",
            )
            assert not marking.done()
        marking.result()
    assert marked(bench) == 1


def test_nobody_joins_what_is_being_deleted(bench: Bench, source: PostgresSource) -> None:
    topic_id = bench.topic_with(subscriptions=("billing", "ending"))
    topic_admin.delete_subscription(bench.store, TOPIC, "ending", bench.request())
    with pytest.raises(Conflict, match="being deleted"):
        source.register(topic_id, "ending", "a")

    source.register(topic_id, "billing", "a")
    topic_admin.delete_topic(bench.store, TOPIC, bench.request())
    with pytest.raises(TopicNotLive, match="is deleting"):
        source.register(topic_id, "billing", "b")

    registered = "SELECT array_agg(subscription || '/' || name) FROM cleave.consumer"
    assert bench.scalar(registered) == ["billing/a"]
