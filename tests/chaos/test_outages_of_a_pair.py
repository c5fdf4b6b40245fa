"""A replicated database fails over again and again under traffic and reshapes, at instants that a seed chooses.

The short scenes are in `tests/integration/outages`. Here one scene lives through many synchronous fail-overs, by kills and
by freezes and with clocks that differ, and every scenario is played several times with two workers that know both hosts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from controller.services.segment_admin import merging, splitting
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import SharedBroker
from tests.support.missing import skip_without
from tests.support.outage_scenarios import CLOCK_BEHIND_SECONDS, SCENARIOS, play
from tests.support.outage_scene import OutageScene, TopicScene, prepare
from tests.support.replicated_postgres import FAKETIME, Address, ReplicatedPostgres
from tests.support.scratch import scratch

pytestmark = [pytest.mark.chaos, pytest.mark.pulsar, pytest.mark.timeout(1800)]
OUTAGES = 10
SEEDS = (1, 2)
ROUNDS = 3
NARROWEST_SPLIT = 16_384
"""Hashes. Segments of an eighth of the ring have keys of every producer, so that every consumer receives messages."""
MOST_RESHAPES = 4
"""Requested at once, right before an outage."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedPostgres]:
    """A primary without a standby: each outage is preceded by the standby that it needs."""
    with ReplicatedPostgres(scratch(tmp_path_factory, "replicated")) as cluster:
        prepare(cluster)
        yield cluster


@pytest.fixture
def topics(pulsar_broker: SharedBroker) -> list[PulsarTopic | None]:
    """One topic on each plane."""
    return [None, PulsarTopic.fresh(pulsar_broker.admin_url, pulsar_broker.service_url, "outages")]


def request_some(chooser: random.Random, topic: TopicScene) -> None:
    """Splits and merges on segments that no other of them touches; the workers have begun any of them, or none."""
    active = list(topic.bench.layout.active)
    for _ in range(chooser.randint(1, MOST_RESHAPES)):
        wide = [one for one in active if one.hash_range.width >= NARROWEST_SPLIT]
        pairs = [two for two in pairwise(active) if two[0].hash_range.is_adjacent_to(two[1].hash_range)]
        if wide and (chooser.random() < 0.6 or not pairs):
            chosen = [chooser.choice(wide)]
            topic.request(splitting(chosen[0].segment_id))
        elif pairs:
            chosen = list(chooser.choice(pairs))
            topic.request(merging(*(one.segment_id for one in chosen)))
        else:
            return
        active = [one for one in active if one not in chosen]


def fail_over(scene: OutageScene, chooser: random.Random) -> None:
    """One fail-over by a kill or a freeze, to a standby whose clock may be far from the primary's.

    The clock is ahead of the machine's, or the machine's, since a server that libfaketime sets back ends transactions early.
    """
    behind = chooser.choice((0, -CLOCK_BEHIND_SECONDS)) if FAKETIME.exists() else 0
    scene.cluster.add_standby(synchronous=True, clock_behind_seconds=behind)
    for topic in scene.topics:
        request_some(chooser, topic)
    scene.advance(by=chooser.randint(0, 30))
    with scene.outage():
        chooser.choice((scene.cluster.kill_primary, scene.cluster.freeze_primary))()
        scene.cluster.promote()
    assert scene.wait_resumed(limit_seconds=120.0), "not everybody continues"
    scene.cluster.kill_frozen()


@pytest.mark.parametrize("seed", SEEDS)
def test_many_fail_overs_cost_no_message(
    seed: int, cluster: ReplicatedPostgres, tmp_path: Path, topics: list[PulsarTopic | None]
) -> None:
    chooser = random.Random(seed)
    with ExitStack() as running:
        scene = OutageScene(cluster, tmp_path, running, topics=topics, workers=2)
        scene.begin()
        for _ in range(OUTAGES):
            fail_over(scene, chooser)
            scene.maintain(1)
        outcomes = scene.judge()
    broken = [law for one in outcomes.values() for law in one.broken_laws(duplicates=False)]
    if broken:
        pytest.fail("\n".join([*broken, *map(str, outcomes.values())]), pytrace=False)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_outage_with_two_workers_that_know_both_hosts_costs_no_message(
    name: str, number: int, cluster: ReplicatedPostgres, tmp_path: Path, topics: list[PulsarTopic | None]
) -> None:
    scenario = SCENARIOS[name]
    if scenario.missing:
        skip_without(scenario.missing)
    outcomes = play(scenario, cluster, tmp_path, topics, address=Address.HOSTS, workers=2)
    broken = scenario.broken_laws(outcomes)
    if broken:
        pytest.fail(broken, pytrace=False)
