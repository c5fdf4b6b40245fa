"""Brokers as the answer of `cleave bundles brokers` lists them."""

from __future__ import annotations

from controller.bundles.broker_table import broker_table

READ = [{"broker": "b", "silent_seconds": 90, "usage": 0.4}, {"broker": "gone", "silent_seconds": 7_200}]


def test_active_brokers_that_never_reported_come_last_by_name() -> None:
    rows, _ = broker_table(READ, {"b", "d", "c"})

    assert [(row["broker"], row["active"], row["read"]) for row in rows] == [
        ("b", True, "90 s ago"),
        ("gone", False, "2 h ago"),
        ("c", True, "never"),
        ("d", True, "never"),
    ]


def test_without_an_answer_of_the_cluster_nothing_is_said_of_who_is_active() -> None:
    rows, _ = broker_table(READ, None)

    assert [(row["broker"], row["active"]) for row in rows] == [("b", None), ("gone", None)]
