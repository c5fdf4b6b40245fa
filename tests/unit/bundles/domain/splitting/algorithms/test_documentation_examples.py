"""The worked examples of Pulsar's page on load balancing, with corrected hexadecimal numbers.

The page averages leading digits as decimals: (0x15… + 0x24…) / 2 is 0x1C8…, not 0x195…. Its groups of topics
are right throughout. Its midpoints are Pulsar's lower rule; Pulsar's code answers one more for the flow algorithm.
"""

from __future__ import annotations

import pytest

from controller.bundles.domain.splitting.algorithms.base import MIB, Midpoint, SplitPlan
from tests.unit.bundles.domain.splitting.algorithms.questions import ask, cuts, topic

FLOW = "flow_or_qps_equally_divide"
SIX = [
    topic(0x10000000, 100, 10),
    topic(0x15000000, 200, 20),
    topic(0x24000000, 300, 30),
    topic(0x39000000, 400, 40),
    topic(0x58000000, 500, 50),
    topic(0x76000000, 600, 60),
]
CASES = {
    "1, by messages": (450, 200, (0x1C800000, 0x2E800000, 0x48800000, 0x67000000)),
    "2, by bytes": (1900, 90, (0x2E800000, 0x67000000)),
    "3, by both": (1100, 110, (0x48800000,)),
}


@pytest.mark.parametrize(("rate", "mib", "points"), CASES.values(), ids=CASES)
def test_flow_cuts_where_the_page_groups(rate: float, mib: float, points: tuple[int, ...]) -> None:
    limits = {"max_msg_rate": rate, "max_byte_rate": mib * MIB}

    assert cuts(ask(FLOW, SIX, midpoint=Midpoint.LOWER, **limits)) == points
    assert cuts(ask(FLOW, SIX, **limits)) == tuple(point + 1 for point in points)


def test_flow_names_the_load_of_each_part() -> None:
    plan = ask(FLOW, SIX, max_msg_rate=1900, max_byte_rate=90 * MIB)

    assert isinstance(plan, SplitPlan)
    assert [(part.topic_count, part.msg_rate, part.byte_rate / MIB) for part in plan.parts] == [
        (3, 600, 60),
        (2, 900, 90),
        (1, 600, 60),
    ]


def test_topic_count_leaves_as_many_topics_on_either_side() -> None:
    six = [topic(at << 24) for at in (0x10, 0x20, 0x35, 0x65, 0x70, 0x75)]
    plan = ask("topic_count_equally_divide", six)

    assert isinstance(plan, SplitPlan)
    assert plan.cuts == (0x4D000000,)
    assert [part.topic_count for part in plan.parts] == [3, 3]


def test_range_halves_the_range() -> None:
    assert cuts(ask("range_equally_divide", [])) == (0x40000000,)


def test_specified_positions_part_two_large_topics() -> None:
    two = [topic(0x30000000), topic(0x35000000)]

    assert cuts(ask("specified_positions_divide", two, (0, 0x40000000), positions=(0x33000000,))) == (
        0x33000000,
    )


def test_both_proposals_of_issue_13761() -> None:
    """A: the middle of the topic's two partitions. B: 0x00_0x10 with 0x03 and 0x07 becomes five."""
    two = [
        topic(0x03, name="persistent://public/default/T-partition-0"),
        topic(0x07, name="persistent://public/default/T-partition-1"),
        topic(0x0E),
    ]
    halved = ask("specified_topic_count_equally_divide", two, (0, 0x10), topics=("T",))
    isolated = ask("isolate_outstanding", two, (0, 0x10), topics=("T",))

    assert cuts(halved) == (0x05,)
    assert isinstance(isolated, SplitPlan)
    assert [(part.bundle.lower, part.bundle.upper) for part in isolated.parts] == [
        (0x00, 0x03), (0x03, 0x04), (0x04, 0x07), (0x07, 0x08), (0x08, 0x10),
    ]  # fmt: skip
