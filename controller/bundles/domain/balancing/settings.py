"""Parameters of bundle balancing, validated together. Defaults are Pulsar's where Pulsar has the parameter.

Pulsar's percentages are fractions here (85 is 0.85), its minutes are seconds. The module of the shedder or placement that reads a
parameter describes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Self

from controller.bundles.domain.load import RESOURCES
from controller.domain.errors import InvalidPolicy
from controller.domain.policy import MAX_SECONDS, Violation
from controller.domain.policy_parameters import ParameterValue, read_parameters, write_parameter

MIB: Final = 1024.0 * 1024.0
SHEDDER_NAMES: Final = ("even", "overload", "threshold", "uniform", "avg", "transfer")
PLACEMENT_NAMES: Final = (
    "least_long_term_rate",
    "least_usage",
    "least_reported_usage",
    "round_robin",
    "planned",
)


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """A complete set of parameters; `violations` checks them. Usages are fractions of a broker's limit.

    - `shedder` proposes moves. `placement` chooses the destination if the shedder names none.
    - `excluded_namespaces`: `tenant/namespace`, separated by commas; their bundles are not shed.
    - `grace_seconds`: time for which a moved bundle is not moved again.
    - `report_ttl_seconds`: an older report counts as none (`transfer`, `even`).
    - `max_moves_per_cycle` limits the disturbance; 0: no limit. An exchange of `transfer` that would exceed it is not made.
    - `history_weight` is the weight of the past in moving averages.
    - `shed_bundles_with_policies`: False keeps the bundles of namespaces with an isolation policy or an anti-affinity group in place.
    - Each further group belongs to the shedder or placement in its name. `overloaded_usage` belongs to `overload`, `transfer`,
      `least_long_term_rate` and the second choice of every placement (`balance.place`), `unload_fraction` and `min_unload_*` to `uniform`
      and `avg`, `max_unload_bundles` (-1: no limit) to `uniform`.
    - The bands of `even` are shares of the mean usage. A broker outside `even_hot_band` or `even_cold_band` is brought back to the goal,
      which is closer to the mean.
    - `strict_pulsar` reproduces those errors of Pulsar that can be reproduced, for comparison.
    """

    shedder: str = "even"
    placement: str = "least_long_term_rate"
    excluded_namespaces: str = ""
    shed_bundles_with_policies: bool = True
    grace_seconds: int = 1_800
    report_ttl_seconds: int = 1_800
    max_moves_per_cycle: int = 256
    history_weight: float = 0.9
    cpu_weight: float = 1.0
    direct_memory_weight: float = 0.0
    bandwidth_in_weight: float = 1.0
    bandwidth_out_weight: float = 1.0
    memory_weight: float = 0.0
    overloaded_usage: float = 0.85
    threshold_margin: float = 0.10
    threshold_min_byte_rate: float = 10 * MIB
    threshold_lower_boundary: bool = False
    uniform_msg_rate_difference: float = 0.5
    uniform_byte_rate_ratio: float = 4.0
    unload_fraction: float = 0.2
    min_unload_msg_rate: float = 1_000.0
    min_unload_byte_rate: float = 1 * MIB
    max_unload_bundles: int = -1
    avg_low_usage: float = 0.15
    avg_high_usage: float = 0.40
    avg_low_hits: int = 8
    avg_high_hits: int = 2
    transfer_target_std: float = 0.25
    transfer_hits: int = 3
    transfer_enabled: bool = True
    transfer_max_sources: int = 3
    transfer_delay_seconds: int = 180
    transfer_top_bundles: int = 10
    even_target_spread: float = 0.25
    even_hot_band: float = 0.15
    even_hot_goal: float = 0.10
    even_cold_band: float = 0.40
    even_cold_goal: float = 0.35
    even_min_usage_gap: float = 0.01
    even_hits: int = 2
    even_settle_seconds: int = 120
    placement_usage_gap: float = 0.10
    max_topics_per_broker: int = 50_000
    spread_namespaces: bool = True
    strict_pulsar: bool = False

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each resource in the weighted maximum. The defaults are Pulsar's, where the heap's weight is deprecated."""
        return {name: getattr(self, f"{name}_weight") for name in RESOURCES}

    def excludes(self, namespace: str) -> bool:
        """Return True if the namespace is in `excluded_namespaces`, so that its bundles are never shed."""
        return bool(self.excluded_namespaces) and namespace in {
            name.strip() for name in self.excluded_namespaces.split(",")
        }

    def to_document(self) -> dict[str, ParameterValue]:
        """Return every parameter by name, as JSON values."""
        return {parameter: write_parameter(getattr(self, parameter)) for parameter in BALANCE_PARAMETERS}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the document of `to_document`. A parameter that is absent or null has its default. Bounds are not checked (see
        `validate`). Raises InvalidPolicy for an unknown parameter or a value of another type.
        """
        values: dict[str, Any] = dict(read_parameters(document, BALANCE_PARAMETERS, "bundle balancing"))
        return cls(**values)


BALANCE_PARAMETERS: Mapping[str, type] = MappingProxyType(
    {f.name: type(f.default) for f in fields(BalanceSettings)}
)
"""Every parameter and its type, in the order of declaration."""

_AT_LEAST: Final[Mapping[str, float]] = {
    "max_moves_per_cycle": 0,
    "threshold_min_byte_rate": 0,
    "uniform_msg_rate_difference": 0,
    "uniform_byte_rate_ratio": 0,
    "min_unload_msg_rate": 0,
    "min_unload_byte_rate": 0,
    "max_unload_bundles": -1,
    "avg_low_hits": 1,
    "avg_high_hits": 1,
    "transfer_target_std": 0,
    "transfer_hits": 0,
    "transfer_max_sources": 1,
    "transfer_top_bundles": 2,  # one of these bundles stays, so that with 1 no bundle would move
    "even_min_usage_gap": 0,
    "even_hits": 1,
    "even_hot_goal": 0,
    "even_cold_goal": 0,
    "max_topics_per_broker": 1,
    **{parameter: 0 for parameter in BALANCE_PARAMETERS if parameter.endswith(("_weight", "_seconds"))},
}
_AT_MOST: Final[Mapping[str, float]] = {
    # Fractions. A percentage as in Pulsar (85) is refused; otherwise it would disable shedding.
    **dict.fromkeys(
        (
            "history_weight",
            "overloaded_usage",
            "unload_fraction",
            "threshold_margin",
            "avg_high_usage",
            "transfer_target_std",
            "placement_usage_gap",
            "even_target_spread",
            "even_cold_band",
            "even_min_usage_gap",
        ),
        1,
    ),
    "uniform_msg_rate_difference": 10,
    **{parameter: MAX_SECONDS for parameter in BALANCE_PARAMETERS if parameter.endswith("_seconds")},
}
_ABOVE_ZERO: Final = (
    "overloaded_usage",
    "threshold_margin",
    "unload_fraction",
    "avg_low_usage",
    "even_target_spread",
)
_BELOW: Final = (
    ("avg_low_usage", "avg_high_usage"),
    ("even_hot_goal", "even_hot_band"),
    ("even_cold_goal", "even_cold_band"),
)


def violations(settings: BalanceSettings) -> tuple[Violation, ...]:
    """Return a violation for each broken rule, with the parameter, its value, the needed value (None for an unknown name) and the rule.
    Empty if the settings are valid. Raises no error.

    The bands of `even` must together keep `even_target_spread`: if every broker is between 1 - cold and 1 + hot times the mean, the
    standard deviation is at most the mean times the square root of cold x hot.
    """
    values = {parameter: getattr(settings, parameter) for parameter in BALANCE_PARAMETERS}
    broken = [Violation(k, values[k], n, f">= {n}") for k, n in _AT_LEAST.items() if not values[k] >= n]
    broken += [Violation(k, values[k], n, f"<= {n}") for k, n in _AT_MOST.items() if not values[k] <= n]
    broken += [Violation(k, values[k], 0, "> 0") for k in _ABOVE_ZERO if not values[k] > 0]
    broken += [
        Violation(low, values[low], values[high], f"below {high} = {values[high]}")
        for low, high in _BELOW
        if not values[low] < values[high]
    ]
    max_product = settings.even_target_spread**2
    if not settings.even_hot_band * settings.even_cold_band <= max_product * (1 + 1e-9):
        needed = max_product / settings.even_cold_band if settings.even_cold_band else 0.0
        rule = f"at most even_target_spread² / even_cold_band = {needed:g}"
        broken.append(Violation("even_hot_band", settings.even_hot_band, needed, rule))
    for parameter, names in (("shedder", SHEDDER_NAMES), ("placement", PLACEMENT_NAMES)):
        if values[parameter] not in names:
            broken.append(Violation(parameter, values[parameter], None, f"one of {', '.join(names)}"))
    return tuple(broken)


def validate(settings: BalanceSettings) -> None:
    """Raise InvalidPolicy, which names each parameter, its value and the rule that it breaks, unless the settings are valid."""
    broken = violations(settings)
    if broken:
        raise InvalidPolicy(f"Invalid bundle balancing configuration: {'; '.join(map(str, broken))}")
