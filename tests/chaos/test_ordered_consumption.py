"""Keyed messages through a topic that is split, merged and rebucketed all the time, while whoever takes part is killed or stopped.

0 lost, 0 out of key order, on the embedded logs and on a released broker. A message that was not acknowledged may come twice: that is
what a death costs. One that was acknowledged comes again only where a seek says so, or where its acknowledgement died with a client or a
broker that had not written it down; and a key is in two hands only while one of them was stopped for too long to be heard.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kept import keep
from benchmarks.machine import machine
from controller.client.history_check import Kind, Verdict
from controller.devstack.postgres import PostgresServer
from controller.devstack.pulsar.standalone import PulsarStandalone
from tests.chaos.ordered_scene import OrderedScene
from tests.support.bench import Bench
from tests.support.bench_planes import PulsarTopic

NewBench = Callable[[], Bench]
RecordFigure = Callable[[str], None]
SEED = int(os.environ.get("CLEAVE_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
"""CLEAVE_SEED repeats a run's choices."""


def check_run(
    bench: Bench,
    directory: Path,
    record_figure: RecordFigure,
    *,
    operations: int,
    messages: int,
    rate: int,
    strike_every: int,
    **options: Any,
) -> None:
    """At least so many operations and messages under strikes, and the histories of all compared."""
    print(f"seed {SEED}")  # noqa: T201 - shown where the test fails
    with ExitStack() as running:
        scene = OrderedScene(bench, directory, running, seed=SEED, rate=rate, consumers=3, **options)
        began = time.monotonic()
        scene.run(operations, strike_every=strike_every)
        while scene.sent < messages:
            scene.run(10, strike_every=strike_every)
        seconds = time.monotonic() - began

        verdict, unexplained = scene.judge()

        assert verdict.in_order_and_complete, verdict
        assert unexplained == []
        assert not scene.unseen
        assert verdict.sent >= messages
        bench.settle()
        bench.check_laws()
    if os.environ.get("CLEAVE_KEEP_FIGURES"):
        keep("ordered_chaos", _figures(scene, verdict, seconds), section=bench.plane.name)
    told = ", ".join(f"{count} {name}" for name, count in sorted(scene.acts.items()))
    record_figure(
        f"ordered consumption on {bench.plane.name}, seed {SEED}: {verdict.summary}, in {seconds:.0f} s; {told}"
    )


def _figures(scene: OrderedScene, verdict: Verdict, seconds: float) -> dict[str, Any]:
    strikes = {name: scene.acts[name] for name in sorted(scene.strike_names)}
    found = {kind.value: verdict.counts[kind] for kind in Kind}
    return {
        "benchmark": "ordered_chaos",
        "machine": machine(),
        "command": "make chaos ARGS='-k ordered_consumption'",
        "seed": SEED,
        "seconds": round(seconds),
        "operations": sum(scene.acts.values()) - sum(strikes.values()),
        "sent": verdict.sent,
        "delivered": verdict.delivered,
        "redelivered": verdict.redelivered,
        **found,
        "duplicated_or_two_owners_without_a_strike_that_explains_it": 0,  # else the run has failed
        **strikes,
    }


@pytest.mark.timeout(600)
def test_fast_subset_a_topic_that_never_rests_loses_nothing_and_keeps_each_key_in_order(
    new_bench: NewBench, tmp_path: Path, record_figure: RecordFigure
) -> None:
    check_run(new_bench(), tmp_path, record_figure, operations=20, messages=5_000, rate=1_000, strike_every=2)


@pytest.mark.chaos
@pytest.mark.timeout(6 * 3600)
def test_a_million_messages_over_a_thousand_operations(
    new_bench: NewBench, tmp_path: Path, record_figure: RecordFigure
) -> None:
    check_run(
        new_bench(),
        tmp_path,
        record_figure,
        operations=1_000,
        messages=1_000_000,
        rate=1_500,
        strike_every=12,
    )


@pytest.mark.chaos
@pytest.mark.pulsar
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_messages_over_two_hundred_operations_on_a_broker_that_is_killed(
    killable_broker: PulsarStandalone,
    postgres_server: PostgresServer,
    migrated_template: str,
    tmp_path: Path,
    record_figure: RecordFigure,
) -> None:
    """With deduplication on, as `cleave doctor --fix` has it, and one message waiting at each reader."""
    url = postgres_server.create_database(f"cleave_ordered_{SEED}", template=migrated_template)
    bench = Bench(url, PulsarTopic.fresh(killable_broker.admin_url, killable_broker.service_url, "ordered"))
    with closing(bench):
        check_run(
            bench,
            tmp_path,
            record_figure,
            operations=200,
            messages=100_000,
            rate=200,
            strike_every=6,
            broker=killable_broker,
            prefetch=1,
            look_every=5,
            most_unread=3_000,
        )
