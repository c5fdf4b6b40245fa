"""How many consumers an application has, from what its brokers list."""

from __future__ import annotations

import pytest

from controller.domain.observed_consumers import ObservedConsumer, SubscriptionUse, subscription_uses

LOW, HIGH = "log-low", "log-high"


def on(kind: str, *names: str, connection: str = "c", broker: str = "b") -> list[ObservedConsumer]:
    """Consumers of one subscription over one connection."""
    return [ObservedConsumer("s", kind, name, connection, broker) for name in names]


def count(**logs: list[ObservedConsumer]) -> int:
    """Consumers of the one subscription over these logs."""
    return subscription_uses(logs)["s"].consumers


def test_a_name_on_several_logs_is_one_consumer() -> None:
    names = on("Failover", "pod-1", "pod-2")

    assert subscription_uses({LOW: names, HIGH: names}) == {
        "s": SubscriptionUse("Failover", 2, ("pod-1", "pod-2"))
    }


def test_the_consumers_of_two_unnamed_processes_are_two_however_many_segments_they_read() -> None:
    def process(number: int) -> dict[str, list[ObservedConsumer]]:
        return {
            log: on("Failover", f"{number}a{part}c0ffee5"[-10:], connection=f"c{number}")
            for part, log in enumerate(("a", "b", "c"))
        }

    first, second = process(1), process(2)

    assert count(**{log: first[log] + second[log] for log in first}) == 2


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ({"low": on("Exclusive", "pod-1"), "high": on("Exclusive", "pod-2")}, 2),
        ({"low": on("Key_Shared", "p1", "p2", "p3"), "high": on("Key_Shared", "p4", "p5")}, 5),
        ({"low": on("Failover", "", "")}, 2),
        ({"low": on("Failover", "ab12c", "ab12d")}, 2),
        ({"low": on("Failover", "x", "x")}, 1),
        (
            {
                "low": on("Failover", "0a1b2", connection="c1", broker="b1"),
                "high": on("Failover", "3c4d5", connection="c2", broker="b2"),
            },
            1,
        ),
        ({"low": on("Failover", "pod-1", ""), "high": on("Failover", "pod-1", "")}, 2),
    ],
    ids=[
        "given names, one on each log",
        "given names, several on each log",
        "no names on one log",
        "generated names on one log",
        "one name on one log",
        "a process on two brokers, with two connections",
        "named and unnamed",
    ],
)
def test_named_consumers_count_once_and_unnamed_ones_by_their_processes(
    logs: dict[str, list[ObservedConsumer]], expected: int
) -> None:
    assert count(**logs) == expected


def test_names_without_names_are_not_shown() -> None:
    assert subscription_uses({LOW: on("Shared", "", "b", "a")})["s"] == SubscriptionUse(
        "Shared", 3, ("a", "b")
    )


def test_ordered_reading_weighs_more_than_a_queue_while_the_type_changes() -> None:
    assert (
        subscription_uses({LOW: on("Shared", "a"), HIGH: on("Failover", "a")})["s"].subscription_type
        == "Failover"
    )


def test_subscriptions_are_told_apart_and_those_without_consumers_left_out() -> None:
    other = ObservedConsumer("t", "Shared", "a", "c", "b")

    assert {
        name: use.consumers
        for name, use in subscription_uses({LOW: [*on("Failover", "a"), other], HIGH: []}).items()
    } == {"s": 1, "t": 1}
    assert subscription_uses({LOW: [], HIGH: []}) == {}
