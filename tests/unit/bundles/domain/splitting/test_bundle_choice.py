"""The bundle that a person means by LARGEST or HOT."""

from __future__ import annotations

import pytest

from controller.bundles.domain.load.stats import BundleStats
from controller.bundles.domain.splitting.thresholds import BundleReport, chosen_bundle
from controller.domain.errors import BundleNotFound, CleaveError, InvalidInput
from tests.unit.bundles.domain.splitting.split_cycles import BUNDLES


def report(index: int, topic_count: int, byte_rate_out: float, peak: float = 0.0) -> BundleReport:
    return BundleReport(
        BUNDLES[index],
        BundleStats(topic_count=topic_count, byte_rate_in=peak),
        BundleStats(byte_rate_out=byte_rate_out),
    )


REPORTS = [
    report(3, 5, 2e6),
    report(2, 7, 1e6),
    report(1, 7, 1e6, peak=9e9),
    report(4, 6, 2e6),
    report(0, 0, 9e6),
]


@pytest.mark.parametrize(("choice", "index"), [("LARGEST", 1), ("HOT", 3)])
def test_the_greatest_and_of_equals_the_first_by_name(choice: str, index: int) -> None:
    assert chosen_bundle(choice, REPORTS) == BUNDLES[index]
    assert chosen_bundle(choice, reversed(REPORTS)) == BUNDLES[index]


@pytest.mark.parametrize(
    ("choice", "reports", "error", "message"),
    [
        ("HOT", [REPORTS[-1]], BundleNotFound, "none is HOT; name the bundle"),
        ("hot", REPORTS, InvalidInput, "'hot' is unknown; choose one of LARGEST, HOT"),
    ],
    ids=["no topics", "another choice"],
)
def test_a_choice_of_no_bundle_is_refused(
    choice: str, reports: list[BundleReport], error: type[CleaveError], message: str
) -> None:
    with pytest.raises(error, match=message):
        chosen_bundle(choice, reports)
