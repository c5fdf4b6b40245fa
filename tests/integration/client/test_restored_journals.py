"""Positions that applications keep, after a restore of a database that is older than the logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from controller.client.checkpoint import Checkpoint
from controller.client.checkpoint_consumer import CheckpointConsumer, Start
from controller.devstack.serving import client_of, serving_leader
from controller.domain.errors import Conflict
from controller.services.garbage_collector import collect_segment
from controller.services.reconciler import recover
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench
from tests.support.older_journal import Backups, maintain
from tests.support.waiting import wait_until


@contextmanager
def reading(bench: Bench, journal: str, start: Checkpoint | Start) -> Iterator[CheckpointConsumer]:
    """A consumer of the bench's logs that a leader on this journal serves."""
    with (
        serving_leader(journal, embedded_url=bench.url) as leader,
        closing(client_of(leader)) as servers,
        closing(CheckpointConsumer(servers, bench.logs, TOPIC, start)) as consumer,
    ):
        yield consumer


def received(consumer: CheckpointConsumer) -> tuple[int, int]:
    """Segment and number of the next messages."""
    batch = wait_until(lambda: consumer.receive(0.1), message="a batch")
    return batch.segment_id, len(batch.messages)


def test_a_checkpoint_is_good_for_a_database_that_lost_prunes(bench: Bench, backups: Backups) -> None:
    bench.topic_with(subscriptions=())
    bench.reshape(splitting(0))
    bench.reshape(splitting(1))
    backup = backups.take()
    for segment_id in (0, 1):
        bench.finish(collect_segment(bench.store, bench.planes, TOPIC, segment_id, bench.request()))
    maintain(bench)
    bench.publish(3, 4)
    with reading(bench, bench.url, Start.EARLIEST) as consumer:
        assert received(consumer) == (3, 4)
        kept = consumer.checkpoint()

    backups.restore(backup)
    maintain(bench)
    bench.publish(3, 2)

    with reading(bench, backup, kept) as consumer:
        assert received(consumer) == (3, 2)


def test_a_checkpoint_of_a_topic_that_the_backup_lacks_gets_the_number_of_the_recovered_one(
    bench: Bench, backups: Backups
) -> None:
    backup = backups.take()
    bench.topic_with(subscriptions=())
    bench.publish(0, 4)
    with reading(bench, bench.url, Start.EARLIEST) as consumer:
        assert received(consumer) == (0, 4)
        kept = consumer.checkpoint()
    bench.publish(0, 2)

    backups.restore(backup)
    bench.execute("SELECT nextval(pg_get_serial_sequence('cleave.topic', 'topic_id'))")
    recover(bench.store, bench.planes, TOPIC, actor="ann", data_plane=bench.plane.name)
    with pytest.raises(Conflict, match="start again without the checkpoint"), reading(bench, backup, kept):
        pass

    with reading(bench, backup, replace(kept, topic_id=bench.topic_id)) as consumer:
        assert received(consumer) == (0, 2)
