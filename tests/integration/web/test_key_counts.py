"""What a producer counts of its keys arrives at a worker and lands as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.devstack.serving import client_of, serving_leader
from controller.domain.errors import AccessForbidden, InvalidInput
from controller.domain.key_count_limits import PRODUCER_MESSAGES
from controller.domain.key_hash import key_bytes, key_hash
from controller.postgres_source import PostgresSource
from controller.services import key_count_landing
from tests.support.bench import TOPIC, Bench
from tests.support.waiting import wait_until


@pytest.fixture
def address(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a worker that lands what it is told at once."""
    monkeypatch.setattr(key_count_landing, "LANDS_EVERY_SECONDS", 0.05)
    bench.topic_with(segments=2)
    with serving_leader(bench.url, landing_url=str(tmp_path / "landing")) as address:
        yield address


def landed(directory: Path) -> dict[int, int]:
    """Messages that were counted in each segment."""
    counts: dict[int, int] = {}
    for path in sorted((directory / "landing-key-counts").rglob("*.parquet")):
        for row in pq.ParquetFile(path).read().to_pylist():
            counts[row["segment_id"]] = counts.get(row["segment_id"], 0) + sum(row["bins"])
            assert row["producers"] == 1
    return counts


def test_a_producer_counts_what_it_sends(bench: Bench, servers: Servers, tmp_path: Path) -> None:
    keys = [f"key-{number}" for number in range(100)]
    expected = {0: 3, 1: 3}  # the two halves of those without a key
    for key in keys:
        segment = bench.layout.segment_for(key_hash(key_bytes(key)).segment_hash)
        expected[segment.segment_id] += 2

    with Producer(HttpSource(servers), bench.logs, TOPIC, key_counts_seconds=0.05) as producer:
        for key in (*keys, *keys, *[None] * 6):
            producer.send(b"x", key)
        producer.flush()
        wait_until(lambda: sum(landed(tmp_path).values()) >= 206, message="all that was sent")

    assert landed(tmp_path) == expected


def test_counts_need_a_source_that_takes_them(bench: Bench) -> None:
    bench.topic_with(segments=1)
    with pytest.raises(InvalidInput, match="HttpSource"):
        Producer(PostgresSource(bench.url), bench.logs, TOPIC, key_counts_seconds=1.0)
    with pytest.raises(InvalidInput, match="more than 0"):
        Producer(PostgresSource(bench.url), bench.logs, TOPIC, key_counts_seconds=0.0)


@pytest.mark.parametrize(
    "counts", [[[65_536, 1, 1]], [[0, 0, 1]], [[0, 1, -1]], [[0, 1]], [[0, 1, 1]] * 4_097]
)
def test_what_is_no_count_is_refused(servers: Servers, counts: list[tuple[int, int, int]]) -> None:
    with pytest.raises(InvalidInput):
        HttpSource(servers).hand_in(TOPIC, "p", counts)


def test_more_than_a_producer_can_send_is_refused_with_the_value_and_the_bound(servers: Servers) -> None:
    counts = [(number, 1, 2**40 - 1) for number in range(4_096)]
    with pytest.raises(
        InvalidInput,
        match=f"p counts {sum(one[2] for one in counts)} messages .* more than the {PRODUCER_MESSAGES} of one producer",
    ):
        HttpSource(servers).hand_in(TOPIC, "p", counts)


def test_a_token_for_another_topic_tells_nothing(address: str) -> None:
    other = client_of(address, topics=("topic://acme/mail/*",))
    try:
        with pytest.raises(AccessForbidden):
            HttpSource(other).hand_in(TOPIC, "p", [(0, 1, 1)])
    finally:
        other.close()
