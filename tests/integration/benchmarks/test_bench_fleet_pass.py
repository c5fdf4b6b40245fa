"""The fleet benchmark measures what it says: everything, then what changed, then nothing."""

from __future__ import annotations

from typing import Any

from benchmarks.bench_fleet_pass import measure


def test_a_pass_costs_what_changed_and_an_idle_fleet_costs_nothing(database: str) -> None:
    figures: dict[str, Any] = measure(database, topics=300, segments=2, change_every=10)

    assert figures["first_pass"]["evaluated"] == 300
    assert figures["load_merge"]["records"] == 60
    assert figures["changed_pass"]["evaluated"] == 30
    assert figures["changed_pass"]["intents"] == 20  # a third of them hot, a third cold
    assert figures["idle_pass"]["evaluated"] == 0
