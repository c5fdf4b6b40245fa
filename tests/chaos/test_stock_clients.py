"""Standard Java, Go and Python clients on a topic that is reshaped all the time, while they, the workers and the broker
are killed and stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from controller.client.history_check import Kind
from controller.devstack.postgres import PostgresServer
from controller.devstack.pulsar.java_server import QUICK
from controller.devstack.pulsar.standalone import PulsarStandalone
from controller.domain.subscription_consumers import SubscriptionConsumers
from tests.chaos.stock_scene import KEEP_ALIVE_SECONDS, StockOrderedScene, StockVerdict
from tests.chaos.test_ordered_consumption import SEED
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic
from tests.support.brokers import VERSION_4, demand_jars
from tests.support.stock_clients import Programs

pytestmark = [pytest.mark.pulsar, pytest.mark.chaos, pytest.mark.timeout(7200)]
RecordFigure = Callable[[str], None]
CONTROL_OPERATIONS = 40
OPERATIONS = int(os.environ.get("CLEAVE_STOCK_OPERATIONS", "200"))
MESSAGES = int(os.environ.get("CLEAVE_STOCK_MESSAGES", "100000"))
RATE = int(os.environ.get("CLEAVE_STOCK_RATE", "150"))
"""Messages a second. One consumer may have all segments, and has to keep up."""
BEHIND_GATES = ("kill_workers", "kill_broker", "kill_broker_and_workers")
"""Strikes that come while a gate is shut."""
Run = Callable[..., StockVerdict]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The programs on the standard clients, compiled once for this process."""
    return Programs.build(tmp_path_factory.mktemp("stock"))


@pytest.fixture
def failover_delay_ms() -> int:
    """Time for which the broker waits before it begins again for another consumer of a Failover subscription; Pulsar's default."""
    return 1000


@pytest.fixture
def killable_broker(
    tmp_path_factory: pytest.TempPathFactory, failover_delay_ms: int
) -> Iterator[PulsarStandalone]:
    """A Pulsar broker (`CLEAVE_TEST_PULSAR_VERSION`, otherwise 4.2.4) that waits for the disk before it answers, and
    drops a client that was stopped for some seconds.
    """
    properties = {
        "journalSyncData": "true",
        "keepAliveIntervalSeconds": str(KEEP_ALIVE_SECONDS),
        "activeConsumerFailoverDelayTimeMillis": str(failover_delay_ms),
    }
    server = PulsarStandalone(
        tmp_path_factory.mktemp("killable"), VERSION_4, jvm=QUICK, properties=properties
    )
    demand_jars(server.version)
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def run(
    killable_broker: PulsarStandalone,
    postgres_server: PostgresServer,
    migrated_template: str,
    programs: Programs,
    tmp_path: Path,
    record_figure: RecordFigure,
) -> Run:
    """A run under strikes of at least so many operations and messages, and its verdict."""

    def play(
        *, operations: int, messages: int = 0, subscription: Mapping[str, Any], **options: Any
    ) -> StockVerdict:
        url = postgres_server.create_database(
            f"cleave_stock_{SEED}_{os.urandom(3).hex()}", template=migrated_template
        )
        place = PulsarTopic.fresh(killable_broker.admin_url, killable_broker.service_url, "stock")
        with closing(Bench(url, place)) as bench, ExitStack() as running:
            scene = StockOrderedScene(
                bench,
                tmp_path,
                running,
                programs,
                seed=SEED,
                rate=RATE,
                broker=killable_broker,
                subscription=subscription,
                **options,
            )
            scene.run(operations, strike_every=5)
            while scene.sent < messages or scene.unseen:
                scene.run(10, strike_every=5)
            found = scene.judge_order()
            told = ", ".join(f"{count} {name}" for name, count in sorted(scene.acts.items()))
        record_figure(
            f"standard clients on Pulsar {VERSION_4}, {options}, {dict(subscription)}: {found.breaks} breaks, {len(found.breaks_at_gates)} of them at "
            f"gates, {found.verdict.summary}, "
            f"{len(found.unexplained)} of them unexplained; {told}; behind shut gates: {dict(found.behind_gates)}"
        )
        return found

    return play


@pytest.mark.parametrize("acknowledgement", ["individual", "cumulative"])
def test_without_gates_some_messages_come_before_their_predecessors_and_none_is_lost(
    run: Run, acknowledgement: str
) -> None:
    """The control run: without it, a run with gates that finds no break proves nothing."""
    found = run(operations=CONTROL_OPERATIONS, subscription={}, acknowledgement=acknowledgement)

    lost, breaks = found.verdict.counts[Kind.LOST], found.breaks
    assert lost == 0
    assert breaks > 0


@pytest.mark.parametrize(
    ("kind", "failover_delay_ms"), [("Failover", 0), ("Exclusive", 1000), ("Failover", 1000)]
)
def test_behind_gates_none_is_lost_and_each_key_comes_in_order_while_all_parts_are_killed(
    run: Run, kind: str, failover_delay_ms: int
) -> None:
    """With Pulsar's default delay, a broker alone makes breaks within a segment when its consumers change (see `ConsumerChanges`)."""
    found = run(
        operations=OPERATIONS,
        messages=MESSAGES,
        subscription={"consumers": SubscriptionConsumers.STOCK},
        kind=kind,
        kills_broker=True,
    )

    # The verdict with all its examples is too long for the message of a failed assertion.
    lost, at_gates, unexplained = (
        found.verdict.counts[Kind.LOST],
        found.breaks_at_gates[:10],
        found.unexplained[:10],
    )
    assert (lost, at_gates, unexplained) == (0, [], [])
    if kind == "Exclusive" or not failover_delay_ms:
        breaks = found.breaks
        assert breaks == 0
    assert found.verdict.sent >= MESSAGES
    assert min(found.behind_gates[name] for name in BEHIND_GATES) > 0
