"""Measures the moves of an assignment, compared with the fewest moves of any fair assignment, and its processor time.

Random histories of joins, leaves, splits, merges and rebuckets on small topics, where every fair assignment can be enumerated. A move is
a bucket that a living consumer loses; a child's bucket belongs to the owner of the parents' bucket. Pulsar's round robin runs in the same
histories, compared with the fewest moves from its own owners. Then the time of one assignment of 10,000 segments to 1,000 consumers is
measured. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from functools import partial
from random import Random

from benchmarks.machine import machine
from controller.domain.assignment import SegmentBucket, assign
from controller.domain.layout import SegmentLayout
from tests.support.consumer_histories import EVENTS, BucketMoves, history, play

_GOAL = 1.1


def moved(histories: int, steps: int) -> dict[str, dict[str, dict[str, object]]]:
    """Return the moves of the assignment and of round robin, by regime and event."""
    assigned: dict[tuple[str, str], BucketMoves] = {}
    round_robin: dict[tuple[str, str], BucketMoves] = {}
    for seed in range(histories):
        life = list(history(Random(seed), steps, max_segments=10, max_consumers=8))
        assigned = play(life, partial(assign, share_buckets=True), assigned)
        round_robin = play(life, partial(assign, share_buckets=True, strict_pulsar=True), round_robin)
    return {
        regime: {event: _row(assigned[regime, event], round_robin[regime, event]) for event in EVENTS}
        for regime in ("whole_segments", "shared_segments")
    }


def _row(assigned: BucketMoves, round_robin: BucketMoves) -> dict[str, object]:
    return {
        "steps": assigned.steps,
        "least_moves": assigned.least,
        "moves": assigned.moves,
        "ratio": ratio(assigned),
        "round_robin_least": round_robin.least,
        "round_robin_moves": round_robin.moves,
        "round_robin_ratio": ratio(round_robin),
    }


def ratio(moves: BucketMoves) -> float | None:
    """Return the moves divided by the fewest moves. None if none were needed and some were made."""
    if not moves.least:
        return None if moves.moves else 1.0
    return round(moves.moves / moves.least, 3)


def milliseconds(segments: int, consumers: int, buckets: int, rounds: int) -> dict[str, float]:
    """Return the time of the fastest of `rounds` assignments after each event."""
    layout = SegmentLayout.initial(segments, bucket_budget=segments * buckets, now=0)
    names = [f"consumer-{i:04}" for i in range(consumers)]
    owners = {
        unit: name for name, share in assign(layout, (), names, share_buckets=True).items() for unit in share
    }
    first = layout.active[0].segment_id
    split = layout.split(first, 1)
    nobody: Mapping[SegmentBucket, str] = {}
    cases = {
        "begin": (layout, (), names, nobody),
        "join": (layout, (), [*names, "consumer-new"], owners),
        "leave": (layout, (), names[1:], owners),
        "split": (split, (first,), names, owners),
    }
    taken = {case: float("inf") for case in cases}
    for case, arguments in cases.items():
        for _ in range(rounds):
            started = time.perf_counter()
            assign(*arguments, share_buckets=True)
            taken[case] = min(taken[case], round((time.perf_counter() - started) * 1_000, 1))
    return taken


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=400)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(
        json.dumps(
            {
                "benchmark": "assignment",
                "machine": machine(),
                "histories": options.histories,
                "steps_each": options.steps,
                "goal_ratio": _GOAL,
                **moved(options.histories, options.steps),
                "milliseconds": {
                    "10000 segments, 1000 consumers": milliseconds(10_000, 1_000, 1, options.rounds),
                    "10000 segments of 4 buckets, 1000 consumers": milliseconds(
                        10_000, 1_000, 4, options.rounds
                    ),
                    "900 segments of 4 buckets, 1000 consumers": milliseconds(900, 1_000, 4, options.rounds),
                    "10 segments of 1024 buckets, 1000 consumers": milliseconds(
                        10, 1_000, 1_024, options.rounds
                    ),
                },
            }
        )
    )


if __name__ == "__main__":
    main()
