"""Pulsar's own modular load manager is asked the same cycles: the same bundles are split.

The answers are on file, written by `PulsarTriggerOracle.java` from the jars of 4.2.4; its head says how to run it.
Where the cap is reached, which bundles are left out follows from the order of a hash map; then the number is the same.
"""

from __future__ import annotations

from pathlib import Path

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import NamespaceBundle
from controller.bundles.domain.splitting.thresholds import BundleReport, SplitThresholds
from controller.bundles.domain.splitting.triggers import (
    TRIGGER_RULES,
    SplitInputs,
    SplitRefusalReason,
    SplitVerdict,
    TriggerSettings,
    decide_splits,
)
from tests.unit.bundles.domain.splitting.split_cycles import NOW_MS, in_halves

MIB = 1024 * 1024
LINES = Path(__file__).with_name("pulsar_4_2_4_triggers.txt").read_text().splitlines()[1:]


def _report(text: str) -> BundleReport:
    name, topics, producers, consumers, msg_rate, byte_rate, long_msgs, long_bytes = text.split(",")
    latest = BundleStats(
        msg_rate_in=float(msg_rate),
        byte_rate_in=float(byte_rate),
        topic_count=int(topics),
        producer_count=int(producers),
        consumer_count=int(consumers),
    )
    known = long_msgs != "-"
    long_term = (
        BundleStats(msg_rate_in=float(long_msgs), byte_rate_in=float(long_bytes)) if known else BundleStats()
    )
    return BundleReport(NamespaceBundle.parse(name), latest, long_term)


def _asked(line: str) -> SplitVerdict:
    cap, topics, sessions, msg_rate, mib, count, *reports = line.split()
    thresholds = SplitThresholds(int(topics), int(sessions), float(msg_rate), float(mib) * MIB)
    settings = TriggerSettings(TRIGGER_RULES["modular"], thresholds, max_bundles=int(cap))
    cycle = SplitInputs(NOW_MS, [_report(text) for text in reports], {"t/n": int(count)}, broker_count=2)
    return decide_splits(cycle, in_halves, settings)


def test_the_same_bundles_are_split() -> None:
    met = {"free": 0, "capped": 0}
    for line in LINES:
        case, answer = line.split(" => ")
        theirs = {name for name in answer.strip("[]").split(", ") if name}
        verdict = _asked(case)
        ours = {str(split.bundle) for split in verdict.chosen}
        if any(refusal.reason is SplitRefusalReason.AT_MAX_BUNDLES for refusal in verdict.refusals):
            met["capped"] += 1
            assert len(ours) == len(theirs), line
        else:
            met["free"] += bool(theirs)
            assert ours == theirs, line

    assert met["free"] > 20
    assert met["capped"] > 5
