"""Every rule that can be backtested, by name: the project's profiles, variants of their policies, and other systems'
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from controller.backtest.load_series import LoadSeries
from controller.backtest.rivals import count_rule, kinesis_on_demand, pravega, static_peak, ydb
from controller.backtest.rule import Rule, of_policy
from controller.domain.named import entry_named
from controller.domain.policy import PROFILES, AutoScalePolicy

WARM_MERGE = 0.35
"""Part of the split thresholds below which the policy `pip483 merge 0.35` merges."""

UNBOUNDED_DEPTH = 1_000_000


def rule_named(name: str, series: LoadSeries, policy: AutoScalePolicy) -> Rule:
    """Return the rule with this name (a key of `RULES`), with capacities and limits of `policy`. Only `static peak` depends
    on the series. Raises InvalidInput for an unknown name; the message lists all names.
    """
    return entry_named("rule", name, RULES)(series, policy)


def merging_at(policy: AutoScalePolicy, part: float) -> AutoScalePolicy:
    """Return `policy` with the profile `pip483`, without `strict_pulsar`, and with merge thresholds that are this part
    (0..1) of its split thresholds. The number of merges in an ancestry is practically unlimited.
    """
    return replace(
        policy,
        profile="pip483",
        strict_pulsar=False,
        max_dag_depth=UNBOUNDED_DEPTH,
        merge_msg_rate_in=part * policy.split_msg_rate_in,
        merge_byte_rate_in=part * policy.split_byte_rate_in,
        merge_msg_rate_out=part * policy.split_msg_rate_out,
        merge_byte_rate_out=part * policy.split_byte_rate_out,
    )


def _profile(name: str) -> Callable[[LoadSeries, AutoScalePolicy], Rule]:
    """Return a factory of the rule that decides by this policy profile, without `strict_pulsar`."""
    return lambda _, policy: of_policy(replace(policy, profile=name, strict_pulsar=False), name)


def _strict(policy: AutoScalePolicy, name: str) -> Rule:
    """Return the rule of the profile `pip483` with `strict_pulsar` under this name."""
    return of_policy(replace(policy, profile="pip483", strict_pulsar=True), name)


def _pravega(scale_factor: int) -> Callable[[LoadSeries, AutoScalePolicy], Rule]:
    return lambda _, policy: pravega.rule(scale_factor, policy)


def _kinesis(minutes: int) -> Callable[[LoadSeries, AutoScalePolicy], Rule]:
    """Return a factory of the rule whose changes take effect after this number of minutes."""
    return lambda _, policy: kinesis_on_demand.rule(60 * minutes, policy)


RULES: Mapping[str, Callable[[LoadSeries, AutoScalePolicy], Rule]] = MappingProxyType(
    {name: _profile(name) for name in PROFILES}
    | {
        "pip483 strict": lambda _, policy: _strict(policy, "pip483 strict"),
        "pip483 strict, merge 0.35": lambda _, policy: _strict(
            merging_at(policy, WARM_MERGE), "pip483 strict, merge 0.35"
        ),
        "pip483 merge 0.35": lambda _, policy: of_policy(merging_at(policy, WARM_MERGE), "pip483 merge 0.35"),
        "pravega sf 2": _pravega(2),
        "pravega sf 64": _pravega(64),
        "ydb": lambda _, policy: ydb.rule(policy),
        "kinesis on-demand 5 min": _kinesis(5),
        "kinesis on-demand 15 min": _kinesis(15),
        "static peak": static_peak.rule,
        "count 0.7": lambda _, policy: count_rule.rule(policy),
    }
)
"""The rules by name. The `strict` rules follow Pulsar's own rules, known defects included. The count rule is an ideal,
not a rival.
"""
