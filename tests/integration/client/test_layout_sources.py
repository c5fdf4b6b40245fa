"""What a producer learns of a topic, from the database or from a worker: the same, and when it changes."""

from __future__ import annotations

import threading

import pytest

from controller.client.http_source import HttpSource
from controller.client.layout_source import LayoutSource, TopicSnapshot
from controller.client.servers import Servers
from controller.domain.errors import InvalidInput, TopicNotFound, TopicNotLive
from controller.postgres_source import PostgresSource
from controller.services import topic_admin
from controller.services.segment_admin import splitting
from tests.support.bench import TOPIC, Bench


@pytest.fixture(params=["database", "worker"])
def either(request: pytest.FixtureRequest, source: PostgresSource, servers: Servers) -> LayoutSource:
    """Both of them, one after the other."""
    return source if request.param == "database" else HttpSource(servers)


def segment_details(snapshot: TopicSnapshot) -> dict[int, tuple[str, tuple[int, ...], int, int, str]]:
    """All that a producer uses of each segment."""
    return {
        one.segment_id: (
            str(one.hash_range),
            tuple(one.bucket_splits),
            one.created_epoch,
            one.created_at_ms,
            snapshot.backing_topics[one.segment_id],
        )
        for one in snapshot.layout.active
    }


def test_a_topic_is_shown_with_its_active_segments_and_their_logs(
    bench: Bench, either: LayoutSource, source: PostgresSource
) -> None:
    topic_id = bench.topic_with(segments=2)
    bench.reshape(splitting(0))

    found = either.topic(TOPIC)

    assert (found.topic_id, found.name) == (topic_id, TOPIC)
    assert found.layout.epoch == 1
    assert found.layout.next_segment_id == bench.layout.next_segment_id
    assert [one.segment_id for one in found.layout.active] == [2, 3, 1]
    assert any(one.bucket_splits for one in found.layout.active)
    assert dict(found.backing_topics) == {i: bench.log_of(i) for i in (1, 2, 3)}
    assert segment_details(found) == segment_details(source.topic(TOPIC))


def test_whoever_watches_is_told_of_a_change_and_then_sees_it(bench: Bench, either: LayoutSource) -> None:
    topic_id = bench.topic_with(segments=1)
    assert either.topic(TOPIC).layout.epoch == 0
    rung = threading.Event()
    watch = either.watch(topic_id, rung.set)
    assert rung.wait(20), "a watch that begins says so, since what went before may have been missed"
    rung.clear()

    bench.reshape(splitting(0))

    while either.topic(TOPIC).layout.epoch == 0:
        assert rung.wait(20), "told of the change"
        rung.clear()
    watch.close()


def test_a_topic_that_is_not_there_or_not_there_yet_is_refused(bench: Bench, either: LayoutSource) -> None:
    with pytest.raises(TopicNotFound, match="check the name"):
        either.topic(TOPIC)

    topic_admin.create_topic(bench.store, bench.planes, TOPIC, bench.request())

    with pytest.raises(TopicNotLive, match="is still being created"):
        either.topic(TOPIC)


@pytest.mark.parametrize("topic", ["orders", "acme/shop/orders", "topic://acme/shop", "topic://a/b/c/d"])
def test_what_is_no_name_of_a_topic_is_refused_before_anybody_is_asked(topic: str) -> None:
    with pytest.raises(InvalidInput, match="topic://tenant/namespace/name"):
        HttpSource(Servers(["http://127.0.0.1:9"], "none")).topic(topic)
