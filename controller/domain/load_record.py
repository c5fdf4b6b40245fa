"""The load of a segment: its rates, the stored record of them, and the thresholds of a policy.

The collector lands counter samples, the aggregation turns samples into rates and rates into records (`load_record_rule`), and
the evaluator reads the records.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.domain.whole_numbers import LARGEST_FLOAT

METRICS = ("msg_rate_in", "byte_rate_in", "msg_rate_out", "byte_rate_out")
"""The four metrics in Pulsar's order, which resolves ties."""


@dataclass(frozen=True, slots=True)
class LoadStats:
    """Rates of one segment, messages and bytes per second, in Pulsar's order of metrics."""

    msg_rate_in: float = 0.0
    byte_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0

    @property
    def rates(self) -> tuple[float, float, float, float]:
        """The four rates in the order of `METRICS`."""
        return self.msg_rate_in, self.byte_rate_in, self.msg_rate_out, self.byte_rate_out

    @property
    def are_rates(self) -> bool:
        """True if each rate is finite and not negative. Other values were never measured."""
        return (
            0 <= self.msg_rate_in <= LARGEST_FLOAT
            and 0 <= self.byte_rate_in <= LARGEST_FLOAT
            and 0 <= self.msg_rate_out <= LARGEST_FLOAT
            and 0 <= self.byte_rate_out <= LARGEST_FLOAT
        )


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """The stored load of a segment; instants are milliseconds since the Unix epoch.

    `modified_at`: time at which `stats` was last written. `cold_since`: time since which all four rates have been
    below the merge thresholds in force, None if they are not. `observed_at`: time of the latest reading from the
    source that reports the segment, which advances without a write.
    """

    stats: LoadStats
    modified_at: int
    cold_since: int | None
    observed_at: int


@dataclass(frozen=True, slots=True)
class LoadThresholds:
    """Split and merge thresholds in force, per segment and second."""

    split: LoadStats
    merge: LoadStats

    def is_cold(self, stats: LoadStats) -> bool:
        """Return True if all four rates are strictly below their merge thresholds; never with a threshold of 0."""
        return all(rate < limit for rate, limit in zip(stats.rates, self.merge.rates, strict=True))
