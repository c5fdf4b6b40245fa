"""Chooses the mode in which a simulation observes the load (see `observation`)."""

from __future__ import annotations

from controller.backtest.average_observation import FollowedAverageObservation, SteadyAverageObservation
from controller.backtest.load_series import LoadSeries
from controller.backtest.measured_load import Grain
from controller.backtest.observation import Observation
from controller.backtest.record_observation import RecordObservation, RewriteObservation
from controller.backtest.rule import Rule
from controller.backtest.side_observation import CrossingObservation, SideObservation
from controller.backtest.spread import Spread
from controller.domain.policy import AutoScalePolicy


def observe(
    series: LoadSeries, rule: Rule, grain: Grain, spread: Spread, *, every_tick: bool, has_consumers: bool
) -> Observation:
    """Return an observation of the series in the mode that suits the rule: for a rule of moving averages
    SteadyAverageObservation if the spread is steady, else FollowedAverageObservation, whatever the other arguments are;
    for any other rule RecordObservation if `every_tick`, RewriteObservation if `has_consumers` or if more than the sides
    of the thresholds matters, SideObservation if a tick is one report, else CrossingObservation.

    `every_tick`: True if the rule is evaluated at every tick, False if only when its answer can change. `has_consumers`:
    True if the topic has a subscription with registered consumers. There are no segments before the first `relayout`.
    """
    kind: type[Observation]
    if rule.average_minutes:
        kind = SteadyAverageObservation if spread.is_steady else FollowedAverageObservation
    elif every_tick:
        kind = RecordObservation
    elif has_consumers or not _rests_on_sides(rule.policy):
        kind = RewriteObservation
    else:
        kind = SideObservation if grain.reports_per_tick == 1 else CrossingObservation
    return kind(series, rule, grain, spread)


def _rests_on_sides(policy: AutoScalePolicy) -> bool:
    """Return True if decisions depend on the sides of the thresholds only: two cold segments are never hot together, and
    the time of the last write has no effect.
    """
    pairs = zip(policy.thresholds.merge.rates, policy.thresholds.split.rates, strict=True)
    return not policy.strict_pulsar and all(2 * merge <= split for merge, split in pairs)
