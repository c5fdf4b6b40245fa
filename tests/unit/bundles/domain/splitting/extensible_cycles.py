"""Split cycles in a row for Pulsar's extensible load manager, and how to read them: one line of text for each.

`python -m tests.unit.bundles.domain.splitting.extensible_cycles` prints the questions for
`PulsarExtensibleTriggerOracle.java`, which says what a line holds. Its answers are on file, and tests read the
file. Everything follows from the seed. Bundles are in the order of `decide_splits`, hottest first, so that limits
leave out the same ones on both sides.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.bundles.domain.load import BundleStats
from controller.bundles.domain.ring import NamespaceBundle, NamespaceBundles
from controller.bundles.domain.splitting.thresholds import BundleReport, SplitThresholds
from controller.bundles.domain.splitting.triggers import TriggerRules, TriggerSettings

NAMESPACE = "t/n"
MIB = 1024 * 1024
THEMES = ("plain", "cap", "limit", "passed-over", "cuts", "splitting")
SEQUENCES_EACH, CYCLES = 12, 6
_BUNDLES = [str(bundle) for bundle in NamespaceBundles.equal(NAMESPACE, 8).bundles]
_SPLITTING = (
    f"{NAMESPACE}/0x00000000_0x40000000",  # begins or ends where a bundle does
    f"{NAMESPACE}/0x50000000_0x90000000",  # holds halves of two and the whole of one
    f"{NAMESPACE}2/0x60000000_0x80000000",  # of another namespace whose name begins alike
)


@dataclass(frozen=True)
class Question:
    """One line: a theme, the settings and the cycles; `cuts`: points found by bundle, None where that fails."""

    theme: str
    settings: TriggerSettings
    bundle_count: int
    cycles: tuple[tuple[tuple[BundleReport, ...], tuple[NamespaceBundle, ...]], ...]
    cuts: dict[NamespaceBundle, int | None]

    @classmethod
    def parse(cls, line: str) -> Question:
        """What was asked in that line."""
        head, *cycles = line.split("|")
        theme, *numbers = head.split()
        cap, topics, sessions, msg_rate, mib, hits, per_cycle, count = map(int, numbers)
        settings = TriggerSettings(
            TriggerRules(
                long_term_rates=False, min_brokers=1, hit_count_threshold=hits, max_splits_per_cycle=per_cycle
            ),
            SplitThresholds(topics, sessions, float(msg_rate), float(mib * MIB)),
            max_bundles=cap,
        )
        cuts: dict[NamespaceBundle, int | None] = {}
        return cls(theme, settings, count, tuple(_cycle(text.split(), cuts) for text in cycles), cuts)


def _cycle(
    words: Sequence[str], cuts: dict[NamespaceBundle, int | None]
) -> tuple[tuple[BundleReport, ...], tuple[NamespaceBundle, ...]]:
    reports, splitting = [], []
    for word in words:
        if word.startswith("~"):
            splitting.append(NamespaceBundle.parse(word[1:]))
            continue
        name, topics, producers, consumers, msg_rate, byte_rate, owned, found = word.split(",")
        bundle = NamespaceBundle.parse(name)
        latest = BundleStats(
            msg_rate_in=float(msg_rate),
            byte_rate_in=float(byte_rate),
            topic_count=int(topics),
            producer_count=int(producers),
            consumer_count=int(consumers),
        )
        reports.append(BundleReport(bundle, latest, owned=owned == "1"))
        cuts[bundle] = None if found == "x" else int(found)
    return tuple(reports), tuple(splitting)


def questions() -> Iterator[str]:
    """Every line."""
    rng = random.Random(424)
    for theme in THEMES:
        for _ in range(SEQUENCES_EACH):
            yield _question(theme, rng)


def _question(theme: str, rng: random.Random) -> str:
    topics, sessions, msg_rate, mib = (
        rng.choice([10, 100]),
        rng.choice([-1, 0, 50]),
        rng.choice([100, 1_000]),
        1,
    )
    count = len(_BUNDLES)
    cap = count + rng.choice([0, 1, 2]) if theme == "cap" else 128
    per_cycle = rng.choice([1, 2]) if theme == "limit" else 100
    hits = rng.choice([0, 1, 3])
    found = {name: rng.choice("012x") if theme == "cuts" else "1" for name in _BUNDLES}
    limits = (topics, sessions, msg_rate, mib * MIB)
    cycles = [_asked(theme, rng, limits, found) for _ in range(CYCLES)]
    head = (theme, cap, topics, sessions, msg_rate, mib, hits, per_cycle, count)
    return " | ".join([" ".join(map(str, head)), *cycles])


def _asked(theme: str, rng: random.Random, limits: tuple[int, int, int, int], found: dict[str, str]) -> str:
    topics, sessions, msg_rate, byte_rate = limits
    rows = []
    for name in _BUNDLES:
        if rng.random() < 0.08:
            continue  # not there in this cycle
        figures = [
            rng.choice([2, topics, topics + 1]) if rng.random() < 0.3 else 2,
            rng.choice([0, 25, 26]),
            rng.choice([0, 25]),
            rng.choice([0, 0, msg_rate, msg_rate, msg_rate + 1, msg_rate * 3]),
            rng.choice([0, 0, byte_rate, byte_rate, byte_rate + 1, byte_rate * 2]),
        ]
        owned = 1
        if theme == "passed-over" and rng.random() < 0.25:
            figures[0], owned = rng.choice([(1, 1), (2, 0)])
        limit_of = (topics, sessions, msg_rate, byte_rate)
        read = (figures[0], figures[1] + figures[2], figures[3], figures[4])
        share = max(value / limit for value, limit in zip(read, limit_of, strict=True) if limit > 0)
        rows.append((-share, name, [*figures, owned, found[name]]))
    words = [",".join(map(str, [name, *row])) for _, name, row in sorted(rows)]
    if theme == "splitting":
        words += [f"~{name}" for name in _SPLITTING if rng.random() < 0.4]
    return " ".join(words)


if __name__ == "__main__":
    for one in questions():
        sys.stdout.write(one + "\n")
