"""Small runs on a real broker, judged by the history checker: buckets that change hands under load, and a seek."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from controller.client.http_source import HttpSource
from controller.client.producer import Producer
from controller.client.servers import Servers
from controller.domain.entry_buckets import MOST_UNITS
from controller.domain.errors import DataPlaneUnavailable
from tests.integration.dataplane.pulsar_setup import PulsarSetup
from tests.support.judged_run import KEYS, JudgedRun, two_come_and_the_first_goes
from tests.support.waiting import wait_until


@pytest.fixture
def buckets() -> int | None:
    """Of the segment; as many as a topic begins with where it is not said."""
    return None


@pytest.fixture
def run(setup: PulsarSetup, servers: Servers, buckets: int | None, tmp_path: Path) -> Iterator[JudgedRun]:
    """On a topic of one segment with four buckets, or so many; its worker does what is asked for."""
    setup.create(1)
    if buckets is not None:
        setup.cleave.ok("segments", "rebucket", setup.topic, "0", str(buckets))
    setup.cleave.ok("subscriptions", "create", setup.topic, "billing")
    segment_id = setup.layout.active[0].segment_id
    logs, directory = setup.app.log_client("pulsar"), tmp_path / "histories"
    directory.mkdir()

    def unread() -> int:
        try:
            return setup.app.planes["pulsar"].backlog(setup.log_of(segment_id), "billing")
        except DataPlaneUnavailable:  # a broker may fail at counting while readers come and go
            return 1

    producer = Producer(HttpSource(servers), logs, setup.topic)
    run = JudgedRun(servers, logs, setup.topic, producer, directory, unread)
    yield run
    run.close()
    producer.close()
    logs.close()


def test_buckets_change_hands_under_load_and_none_is_left_unclaimed(run: JudgedRun) -> None:
    """Two come while messages do, the first goes with some in hand: four buckets have owners all the time."""
    a = run.join("a")
    run.send(0)
    run.take_until(lambda: a.messages_in_hand >= len(KEYS))
    two_come_and_the_first_goes(run, a, all)


@pytest.mark.parametrize("buckets", [200])
def test_a_segment_of_many_buckets_is_read_in_runs(setup: PulsarSetup, run: JudgedRun) -> None:
    """Each with one consumer of the broker, whose slots are those of its three or four buckets; half of them change hands."""
    a = run.join("a")
    run.send(0)
    run.work_off(lambda: len(a.consumer.buckets) == MOST_UNITS)
    run.send(1)
    run.work_off()
    wait_until(  # those whose buckets have no key come when they come
        lambda: consumers(setup) == {MOST_UNITS}, message="each has a consumer of the broker"
    )
    run.send(2)
    b = run.join("b")
    seen: set[int] = set()

    def shared() -> bool:
        seen.update(consumers(setup))
        return len(a.consumer.buckets) == len(b.consumer.buckets) == MOST_UNITS // 2

    run.work_off(shared)
    run.send(3)
    run.work_off()

    verdict = run.judge()

    assert verdict.is_clean, verdict
    assert verdict.sent == 4 * len(KEYS)
    assert verdict.redelivered == 0
    assert max(seen | consumers(setup)) <= MOST_UNITS


def consumers(setup: PulsarSetup) -> set[int]:
    """How many the broker has for the subscription of the active segment."""
    log = setup.log_of(setup.layout.active[0].segment_id).replace("://", "/")
    answer = requests.get(f"{setup.access.admin_urls[0]}/admin/v2/{log}/stats", timeout=30)
    return {len(answer.json()["subscriptions"]["billing"]["consumers"])}


def test_what_is_acknowledged_after_a_seek_is_acknowledged(setup: PulsarSetup, run: JudgedRun) -> None:
    """Whatever was acknowledged before it, and further on."""
    a = run.join("a")
    run.send(0)
    run.send(1)
    run.work_off()
    with run.seek():
        setup.cleave.ok("subscriptions", "seek", setup.topic, "billing", "earliest", "--no-wait")
        done = "SELECT count(*) FROM cleave.operation WHERE kind = 'seek' AND state = 'done'"
        run.work_off(lambda: setup.scalar(done) == 1)
    run.work_off()
    b = run.join("b")
    run.work_off(lambda: len(a.consumer.buckets) == len(b.consumer.buckets) == 2)
    run.send(2)
    run.work_off()

    verdict = run.judge()

    assert verdict.is_clean, verdict
    assert verdict.redelivered == 2 * len(KEYS)
