"""When a bundle is hot, in the cycles of both managers; and the bundle that a person means by LARGEST or HOT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.splitting.thresholds import BundleReport, SplitThresholds, chosen_bundle
from controller.bundles.domain.splitting.triggers import TriggerSettings, decide_splits
from controller.domain.errors import BundleNotFound, CleaveError, InvalidInput
from tests.unit.bundles.domain.splitting.split_cycles import (
    AT_ONCE,
    BUNDLES,
    MODULAR,
    chosen,
    cycle,
    in_halves,
)

LIMITS = {
    "topics": (BundleStats(topic_count=1000), BundleStats(topic_count=1001), 1001),
    "sessions": (
        BundleStats(topic_count=2, producer_count=400, consumer_count=600),
        BundleStats(topic_count=2, producer_count=401, consumer_count=600),
        1001,
    ),
    "msg_rate": (
        BundleStats(topic_count=2, msg_rate_in=20_000, msg_rate_out=10_000),
        BundleStats(topic_count=2, msg_rate_in=20_000, msg_rate_out=10_000.5),
        30_000.5,
    ),
    "byte_rate": (
        BundleStats(topic_count=2, byte_rate_in=60 * 1024**2, byte_rate_out=40 * 1024**2),
        BundleStats(topic_count=2, byte_rate_in=60 * 1024**2, byte_rate_out=40 * 1024**2 + 1),
        100 * 1024**2 + 1,
    ),
}


@pytest.mark.parametrize("settings", [MODULAR, AT_ONCE], ids=["modular", "extensible"])
@pytest.mark.parametrize("metric", LIMITS)
def test_each_limit_is_tested_strictly_above(metric: str, settings: TriggerSettings) -> None:
    at_limit, above, value = LIMITS[metric]
    reports = [BundleReport(BUNDLES[0], at_limit, at_limit), BundleReport(BUNDLES[1], above, above)]
    verdict = decide_splits(cycle(*reports), in_halves, settings)

    assert chosen(verdict) == [BUNDLES[1]]
    assert verdict.refusals == ()
    because = verdict.chosen[0].because
    assert (because.metric, because.value) == (metric, value)


def test_the_first_limit_in_pulsars_order_is_the_reason() -> None:
    everything = BundleStats(1e6, 1e6, 1e12, 1e12, 5000, 5000, 5000)
    less = replace(everything, topic_count=2)
    verdict = decide_splits(
        cycle(BundleReport(BUNDLES[0], everything, everything), BundleReport(BUNDLES[1], less, less)),
        in_halves,
    )

    assert {split.bundle: split.because.metric for split in verdict.chosen} == {
        BUNDLES[0]: "topics",
        BUNDLES[1]: "sessions",
    }


@pytest.mark.parametrize("max_sessions", [0, -1])
def test_sessions_alone_can_be_no_limit(max_sessions: int) -> None:
    crowded = BundleStats(topic_count=2, producer_count=10**6)
    settings = replace(MODULAR, thresholds=SplitThresholds(max_sessions=max_sessions))

    assert decide_splits(cycle(BundleReport(BUNDLES[0], crowded, crowded)), in_halves, settings).chosen == ()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: TriggerSettings(max_bundles=0), "max_bundles = 0; give 1 or more"),
        (lambda: TriggerSettings(cooldown_seconds=-1), "cooldown_seconds = -1; give 0 or more"),
        (lambda: replace(AT_ONCE.rules, min_brokers=0), "min_brokers = 0; give 1 or more"),
        (lambda: replace(AT_ONCE.rules, hit_count_threshold=-1), "hit_count_threshold = -1; give 0 or more"),
        (lambda: replace(AT_ONCE.rules, max_splits_per_cycle=0), "max_splits_per_cycle = 0; give 1 or more"),
        (lambda: SplitThresholds(max_topics=0), "max_topics = 0; give a finite number >= 1"),
        (lambda: SplitThresholds(max_msg_rate=float("inf")), "max_msg_rate = inf"),
        (lambda: SplitThresholds(max_byte_rate=0.5), "max_byte_rate = 0.5"),
        (
            lambda: SplitThresholds(max_sessions=float("nan")),
            "max_sessions = nan; give a number, 0 for no limit",
        ),
    ],
)
def test_parameters_out_of_bounds_are_refused_by_name_and_value(build: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        build()

    assert words in refused.value.message


def test_the_defaults_are_pulsars() -> None:
    thresholds = SplitThresholds()

    assert (thresholds.max_topics, thresholds.max_sessions) == (1000, 1000)
    assert (thresholds.max_msg_rate, thresholds.max_byte_rate) == (30_000, 100 * 1024**2)
    assert (MODULAR.max_bundles, MODULAR.cooldown_seconds, MODULAR.enabled) == (128, 0, True)


def test_the_least_parameters_allowed_are_taken() -> None:
    least = TriggerSettings(replace(AT_ONCE.rules, min_brokers=1, max_splits_per_cycle=1), max_bundles=1)

    assert least.max_bundles == least.rules.min_brokers == least.rules.max_splits_per_cycle == 1
    assert SplitThresholds(1, 0, 1, 1).max_byte_rate == 1


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
