"""Hundreds of operations in a row on a real broker under 5,000 keyed messages a second: none lost, none out of order.

Producers keep to their rate and make up for what a fence held up. Consumers are Cleave's on stock `pulsar-client`
consumers, one for each segment that `assign` hands out when all its ancestors are drained. What is drained is collected
on the way, as the garbage collector does it with no retention.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path as FilePath

import pytest

from controller.client.history_check import Kind
from controller.domain.layout import SegmentLayout
from controller.domain.operation import OperationState
from controller.domain.segment import Segment
from controller.services import deletion_sweeper, garbage_collector
from controller.services.operation_runner import run_due
from controller.services.segment_admin import Planner, merging, rebucketing, recutting, splitting
from tests.chaos.scene import Scene
from tests.support.bench import Bench

pytestmark = pytest.mark.timeout(1800)
MESSAGES_A_SECOND = 5_000
"""Of both producers together."""
FEWEST, MOST = 2, 6
"""Active segments: at the one only a split is asked for, at the other only a merge."""
NARROWEST = 256
"""Hash values of a range that is still cut; with so few segments some range is always wide enough."""
COLLECT_EVERY = 10
NewBench = Callable[[], Bench]
RecordFigure = Callable[[str], None]


def next_planner(layout: SegmentLayout, chooser: random.Random) -> Planner:
    """A reshape of some active segment or of two neighbours, of any kind that keeps their number within bounds."""
    active = layout.active
    wide = [one for one in active if one.hash_range.end - one.hash_range.start >= NARROWEST]
    at = chooser.randrange(len(active) - 1)
    left, right = active[at], active[at + 1]
    split, merge = splitting(chooser.choice(wide).segment_id), merging(left.segment_id, right.segment_id)
    if len(active) == FEWEST:
        return split
    if len(active) == MOST:
        return merge
    rebucket = rebucketing(left.segment_id, 8 if left.bucket_count == 2 else 2)
    return chooser.choice([split, split, merge, merge, rebucket, _recut(left, right, chooser)])


def _recut(left: Segment, right: Segment, chooser: random.Random) -> Planner:
    """Two neighbours with another border between them."""
    border = chooser.randrange(left.hash_range.start + 1, right.hash_range.end)
    return recutting([left.segment_id, right.segment_id], [border])


def collect(bench: Bench) -> None:
    """What everybody has read to its end goes."""
    garbage_collector.collect(bench.store, bench.planes, retention_minutes=0)
    while run_due(bench.context("collector")):
        pass
    deletion_sweeper.sweep(bench.store, bench.planes)


def check_many(count: int, bench: Bench, directory: FilePath, record_figure: RecordFigure) -> None:
    """So many operations under traffic, one after the other, and the history of both ends compared."""
    chooser, kinds = random.Random(count), Counter[str]()
    with ExitStack() as running:
        scene = Scene(bench, directory, running, rate=MESSAGES_A_SECOND // 2)
        scene.begin(FEWEST, consumers=2)
        began, sent_before = time.monotonic(), sum(one.count for one in scene.producers)
        for number in range(1, count + 1):
            intent = bench.intend(next_planner(bench.layout, chooser))
            run_due(bench.context("worker"))  # as a worker finds it: fresh
            operation = bench.finish(intent)
            assert operation.state is OperationState.DONE
            kinds[operation.kind.value] += 1
            if number % COLLECT_EVERY == 0:
                collect(bench)
        seconds = time.monotonic() - began
        rate = (sum(one.count for one in scene.producers) - sent_before) / seconds

        verdict = scene.judge()

        assert verdict.in_order_and_complete, verdict
        assert verdict.counts[Kind.UNCONFIRMED] == 0
        assert verdict.sent > 0
        bench.settle()
        bench.check_laws()
        told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        record_figure(
            f"{count} operations ({told}) in {seconds:.0f} s under {rate:.0f} messages/s; {verdict.summary}; longest pause of a "
            f"producer {scene.longest_pause_ms} ms; {pruned(bench)} segments collected"
        )


def pruned(bench: Bench) -> int:
    """Segments that were collected on the way."""
    return int(bench.scalar("SELECT count(*) FROM cleave.segment WHERE pruned_epoch IS NOT NULL"))


def test_a_dozen_operations_under_traffic_lose_nothing_and_keep_each_key_in_order(
    new_pulsar_bench: NewBench, tmp_path: FilePath, record_figure: RecordFigure
) -> None:
    check_many(12, new_pulsar_bench(), tmp_path, record_figure)


@pytest.mark.chaos
def test_three_hundred_operations_under_traffic_lose_nothing_and_keep_each_key_in_order(
    new_pulsar_bench: NewBench, tmp_path: FilePath, record_figure: RecordFigure
) -> None:
    check_many(300, new_pulsar_bench(), tmp_path, record_figure)
