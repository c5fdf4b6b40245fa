"""Load over time: moving averages, and the two averages that Pulsar keeps of each bundle.

Pure; no state is kept here. `stats` holds the figures that a bundle reports at one instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from controller.bundles.domain.load.stats import BundleStats

SHORT_TERM_SAMPLES: Final = 10
LONG_TERM_SAMPLES: Final = 1000
_SEED_MSG_RATE: Final = 50.0
_SEED_BYTE_RATE: Final = 50_000.0


def moving_average(old: float | None, current: float, history: float) -> float:
    """Return `old` with weight `history` (0 to 1) plus `current` with the remaining weight; `current` if `old` is None."""
    return current if old is None else old * history + current * (1 - history)


@dataclass(frozen=True, slots=True)
class TimeAverage:
    """Pulsar's `TimeAverageMessageData`: rates averaged over samples.

    It is not a window. Once `sample_count` has reached `max_samples`, each new sample has the weight 1 /
    `max_samples`, and old samples never leave entirely. A bundle without a sample has Pulsar's initial values,
    which its first sample replaces.
    """

    max_samples: int
    sample_count: int = 0
    msg_rate_in: float = _SEED_MSG_RATE
    msg_rate_out: float = _SEED_MSG_RATE
    byte_rate_in: float = _SEED_BYTE_RATE
    byte_rate_out: float = _SEED_BYTE_RATE

    @property
    def msg_rate(self) -> float:
        """Messages per second, in and out together."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def byte_rate(self) -> float:
        """Bytes per second, in and out together."""
        return self.byte_rate_in + self.byte_rate_out

    def with_sample(self, stats: BundleStats) -> Self:
        """Return the averages after one more sample; only its rates count. The first sample replaces the initial values."""
        count = min(self.sample_count + 1, self.max_samples)

        def average(old: float, new: float) -> float:
            return ((count - 1) * old + new) / count

        return type(self)(
            self.max_samples,
            count,
            average(self.msg_rate_in, stats.msg_rate_in),
            average(self.msg_rate_out, stats.msg_rate_out),
            average(self.byte_rate_in, stats.byte_rate_in),
            average(self.byte_rate_out, stats.byte_rate_out),
        )


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """Average load of a bundle: over about the last 10 samples (used by the shedders `avg`, `overload`, `threshold` and `uniform`), and
    over about the last 1,000.
    """

    short_term: TimeAverage = TimeAverage(SHORT_TERM_SAMPLES)
    long_term: TimeAverage = TimeAverage(LONG_TERM_SAMPLES)

    def with_sample(self, stats: BundleStats) -> Self:
        """Return both averages after one more sample."""
        return type(self)(self.short_term.with_sample(stats), self.long_term.with_sample(stats))


UNKNOWN_LOAD: Final = BundleLoad()
"""The load that a bundle counts as until its first sample."""
