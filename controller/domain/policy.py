"""The auto-scaling policy: all parameters, resolved field by field from three levels, and validated together.

The levels are cluster, namespace and topic, as in PIP-483: each field is taken from the topic's override, else the
namespace's, else the cluster's. Setting an override replaces the whole document of that level. Levels that are valid
separately can be invalid together, so `violations` checks the resolved policy. The store keeps the overrides; the
evaluator and the aggregation use the parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from controller.domain.entry_buckets import DEFAULT_BUCKET_BUDGET, DEFAULT_MAX_BUCKETS
from controller.domain.errors import InvalidPolicy
from controller.domain.formatting import shown
from controller.domain.hash_range import RING_SIZE
from controller.domain.load_record import METRICS, LoadStats, LoadThresholds
from controller.domain.load_record_rule import DEFAULT_CHANGE_THRESHOLD
from controller.domain.policy_parameters import ParameterValue, misfit, read_parameters, write_parameter
from controller.domain.subscription_consumers import SubscriptionConsumers

PROFILES = ("adaptive", "pip483")
"""Names of the rule sets that an evaluator has, as in `evaluator.PROFILES_BY_NAME`."""

APPROVAL_DEFAULTS = ("approve", "reject")
"""Answers that may apply if no person answers."""

SUBSCRIPTION_CONSUMERS = tuple(consumers.value for consumers in SubscriptionConsumers)

MAX_SECONDS = 100 * 365 * 86_400
"""Upper bound of every duration, a century, so that an instant plus a duration is always a date."""


@dataclass(frozen=True, slots=True)
class AutoScalePolicy:
    """A complete set of parameters; the defaults are Pulsar's (PIP-483, PIP-486) if Pulsar has the parameter.

    The constructor checks nothing; call `violations` or `validate`. Rates are per segment and second. `max_dag_depth`
    limits the merges in a segment's ancestry. `bucket_idle_seconds`: time without a change of consumers after which
    buckets that no consumer needs are given up. `load_stale_after_seconds`: age at which a load record is neither hot
    nor cold. `load_change_threshold`: relative change of a rate that rewrites its record. `approval_merges`,
    `approval_min_segments`: actions that leave fewer segments, and actions that seal or create at least this many
    segments (0: none), need an approval (see `approval_rule`). They wait for `approval_wait_seconds`; then
    `approval_default` applies. A rejected action is not proposed again for `approval_hold_seconds`. `strict_pulsar`:
    decide and keep load records by Pulsar 5's rules, known defects included; this does not hold where consumers cannot
    share the buckets of a segment (see `evaluator`). `subscription_consumers`: consumers of a new STREAM subscription
    whose request names none; no decision reads it. Only decisions of the profile `adaptive` depend on `target_use`,
    `overload_tolerance`, `load_memory_seconds`, the prices and the budgets of reconnections. `docs/reference/policy.md`
    describes every parameter.
    """

    enabled: bool = True
    max_segments: int = 64
    min_segments: int = 1
    max_dag_depth: int = 10
    split_cooldown_seconds: int = 60
    rebucket_cooldown_seconds: int = 60
    bucket_idle_seconds: int = 3_600
    merge_cooldown_seconds: int = 300
    merge_window_seconds: int = 300
    split_vs_rebucket_min_msg_rate_in: float = 1_000.0
    entry_bucket_budget: int = DEFAULT_BUCKET_BUDGET
    entry_bucket_max_per_segment: int = DEFAULT_MAX_BUCKETS
    split_msg_rate_in: float = 10_000.0
    split_byte_rate_in: float = 50_000_000.0
    split_msg_rate_out: float = 50_000.0
    split_byte_rate_out: float = 250_000_000.0
    merge_msg_rate_in: float = 1_000.0
    merge_byte_rate_in: float = 5_000_000.0
    merge_msg_rate_out: float = 5_000.0
    merge_byte_rate_out: float = 25_000_000.0
    load_stale_after_seconds: int = 300
    load_change_threshold: float = DEFAULT_CHANGE_THRESHOLD
    target_use: float = 0.9
    overload_tolerance: float = 0.15
    reseal_price_segment_seconds: float = 7_800.0
    reconnection_price_segment_seconds: float = 1.0
    load_memory_seconds: int = 2_700
    reconnections_per_minute: float = 3_000.0
    cluster_reconnections_per_minute: float = 30_000.0
    approval_merges: bool = False
    approval_min_segments: int = 0
    approval_wait_seconds: int = 86_400
    approval_default: str = "reject"
    approval_hold_seconds: int = 86_400
    profile: str = "pip483"
    strict_pulsar: bool = False
    subscription_consumers: str = "cleave"

    @property
    def thresholds(self) -> LoadThresholds:
        """The split and the merge thresholds, each in the order of `METRICS`."""
        return LoadThresholds(
            LoadStats(
                self.split_msg_rate_in,
                self.split_byte_rate_in,
                self.split_msg_rate_out,
                self.split_byte_rate_out,
            ),
            LoadStats(
                self.merge_msg_rate_in,
                self.merge_byte_rate_in,
                self.merge_msg_rate_out,
                self.merge_byte_rate_out,
            ),
        )

    def to_document(self) -> dict[str, ParameterValue]:
        """Return every parameter by name, as JSON values (`write_parameter`)."""
        return {parameter: write_parameter(getattr(self, parameter)) for parameter in PARAMETERS}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the policy in a cluster's document; a parameter that is absent or null has its default. Bounds are not
        checked. Raises InvalidPolicy for an unknown name or a value of a wrong type.
        """
        values: dict[str, Any] = dict(read_parameters(document, PARAMETERS))
        return cls(**values)


PARAMETERS: Mapping[str, type] = MappingProxyType({f.name: type(f.default) for f in fields(AutoScalePolicy)})
"""Every parameter and its type, in the order of declaration."""


@dataclass(frozen=True, slots=True)
class UnreadablePolicy(AutoScalePolicy):
    """Replacement for a policy that cannot be read completely, and the reason (`why`). It is never valid: its parameters
    have no meaning.
    """

    why: str = ""


OVERRIDABLE_PARAMETERS: Mapping[str, type] = MappingProxyType(
    {
        parameter: kind
        for parameter, kind in PARAMETERS.items()
        if not parameter.startswith(("entry_bucket_", "cluster_"))
    }
)
"""Parameters that a namespace or a topic may set. The bucket parameters apply to a whole cluster, as in PIP-486, and so
does the cluster's budget of reconnections.
"""


class PolicyOverride:
    """Some parameters of a policy. The other parameters are None, so they are inherited from the level above:
    `PolicyOverride(max_segments=8).max_segments`.

    Immutable and compared by value. Raises InvalidPolicy for a parameter that does not exist or may not be
    overridden, and for a value of the wrong type. Only `violations` of the resolved policy can say whether the values
    fit together.
    """

    __slots__ = ("_parameters",)

    _parameters: Mapping[str, ParameterValue]

    def __init__(self, /, **parameters: ParameterValue | None) -> None:
        self._set_parameters(parameters)

    def _set_parameters(self, document: Mapping[str, Any]) -> None:
        object.__setattr__(
            self, "_parameters", MappingProxyType(dict(read_parameters(document, OVERRIDABLE_PARAMETERS)))
        )

    def __getattr__(self, parameter: str) -> Any:
        if parameter in OVERRIDABLE_PARAMETERS:
            return self._parameters.get(parameter)
        raise AttributeError(f"a policy override has no parameter {parameter!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a policy override is immutable; create another one with {name}={value!r}")

    def __eq__(self, other: object) -> bool:
        return self._parameters == other._parameters if isinstance(other, PolicyOverride) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._parameters.items()))

    def __repr__(self) -> str:
        return f"PolicyOverride({', '.join(f'{parameter}={value!r}' for parameter, value in self._parameters.items())})"

    def __reduce__(self) -> tuple[Callable[..., PolicyOverride], tuple[dict[str, ParameterValue]]]:
        return PolicyOverride.from_document, (self.to_document(),)

    @property
    def parameters(self) -> Mapping[str, ParameterValue]:
        """The parameters that are set, in the order of declaration; read-only."""
        return self._parameters

    def to_document(self) -> dict[str, ParameterValue]:
        """Return the parameters that are set, as JSON values; `{}` overrides nothing."""
        return {parameter: write_parameter(value) for parameter, value in self._parameters.items()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PolicyOverride:
        """Return the override in a document of `to_document`. A parameter that is null counts as absent, and an empty
        document overrides nothing. Bounds are not checked.

        Raises InvalidPolicy for a document that is not an object, for a parameter that does not exist or may not be
        overridden, and for a value of a wrong type. The message names the parameter.
        """
        override = cls()
        override._set_parameters(document)
        return override


class PolicyLevel(StrEnum):
    """Level at which a policy is stored."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TOPIC = "topic"


def resolve(
    cluster: AutoScalePolicy, namespace: PolicyOverride | None = None, topic: PolicyOverride | None = None
) -> AutoScalePolicy:
    """Return the policy in force. Each parameter has the value of the topic's override; if the topic does not set the
    parameter, the value of the namespace's override; otherwise the value of the cluster's policy. An override that is
    None sets nothing. If no parameter is overridden, the result is the object `cluster`. The policy is not validated;
    call `violations` or `validate`.
    """
    merged: dict[str, Any] = {}
    for override in (namespace, topic):
        if override is not None:
            merged.update(override.parameters)
    return replace(cluster, **merged) if merged else cluster


@dataclass(frozen=True, slots=True)
class Violation:
    """A parameter that violates its rule. `value` is its value and `rule` the rule in words, such as `>= 1`. `needed` is
    the bound to which the value is compared; None for a rule without a bound, such as a choice or a type.
    """

    parameter: str
    value: object
    needed: float | None
    rule: str

    def __str__(self) -> str:
        """Return the violation as a sentence, `min_segments = 0 must be >= 1`; of an UnreadablePolicy why the policy
        cannot be read.
        """
        if isinstance(self.value, UnreadablePolicy):
            return f"unreadable: {self.value.why}"
        is_choice = isinstance(self.value, str) and self.rule.startswith("one of ")
        return f"{self.parameter} = {self.value if is_choice else shown(self.value)} must be {self.rule}"


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
}
_DURATIONS = tuple(parameter for parameter in PARAMETERS if parameter.endswith("_seconds"))

_LEAST_SECONDS = {"load_stale_after_seconds": 1, "approval_wait_seconds": 60}
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "profile": PROFILES,
        "approval_default": APPROVAL_DEFAULTS,
        "subscription_consumers": SUBSCRIPTION_CONSUMERS,
    }
)
"""The parameters that take one of a set of words, with these words."""

# A bound is a number or the parameter to compare with. Written positively, so that NaN fails.
_RULES: tuple[tuple[str, str, float | str], ...] = (
    ("min_segments", ">=", 1),
    ("max_segments", ">=", "min_segments"),
    ("max_dag_depth", ">=", 0),
    *((parameter, ">=", _LEAST_SECONDS.get(parameter, 0)) for parameter in _DURATIONS),
    *((parameter, "<=", MAX_SECONDS) for parameter in _DURATIONS),
    ("split_vs_rebucket_min_msg_rate_in", ">=", 0),
    ("entry_bucket_budget", ">=", 1),
    ("entry_bucket_max_per_segment", ">=", 1),
    ("entry_bucket_max_per_segment", "<=", RING_SIZE),
    *((f"split_{metric}", ">", 0) for metric in METRICS),
    *((f"merge_{metric}", ">=", 0) for metric in METRICS),
    *((f"split_{metric}", ">", f"merge_{metric}") for metric in METRICS),
    ("load_change_threshold", ">=", 0),
    ("approval_min_segments", ">=", 0),
    ("target_use", ">=", 0.1),
    ("target_use", "<=", 1),
    ("overload_tolerance", ">=", 0),
    ("reconnections_per_minute", ">", 0),
    ("cluster_reconnections_per_minute", ">", 0),
)


def violations(policy: AutoScalePolicy) -> tuple[Violation, ...]:
    """Return a violation for every rule that a resolved policy violates; empty if the policy is valid. A parameter of a
    wrong type has one violation and is not compared with others. An UnreadablePolicy has one violation in all. Never
    raises, whatever values the parameters have.
    """
    if isinstance(policy, UnreadablePolicy):
        return (Violation("policy", policy, None, "readable"),)
    broken_rules = _wrong_types(policy)
    mistyped = {violation.parameter for violation in broken_rules}
    for parameter, sign, bound in _RULES:
        if mistyped and not mistyped.isdisjoint((parameter, bound)):
            continue
        value = getattr(policy, parameter)
        needed = getattr(policy, bound) if isinstance(bound, str) else bound
        if not _OPERATORS[sign](value, needed):
            rule = f"{sign} {bound} = {needed}" if isinstance(bound, str) else f"{sign} {bound}"
            broken_rules.append(Violation(parameter, value, needed, rule))
    for parameter, choices in CHOICES.items():
        value = getattr(policy, parameter)
        if value not in choices and parameter not in mistyped:
            broken_rules.append(Violation(parameter, value, None, f"one of {', '.join(choices)}"))
    if policy.strict_pulsar is True and policy.profile == "adaptive":
        broken_rules.append(
            Violation("strict_pulsar", True, None, "false unless profile = pip483; set that as well")
        )
    return tuple(broken_rules)


def _wrong_types(policy: AutoScalePolicy) -> list[Violation]:
    """Return a violation for each parameter whose value cannot be of the parameter's type, or is an integer beyond the
    range of floats. An int fits a float parameter, and an integral float fits an int parameter.
    """
    mistyped = []
    for parameter, kind in PARAMETERS.items():
        value = getattr(policy, parameter)
        if value.__class__ is kind is not int:
            continue
        expected = misfit(value, kind)
        if expected is not None:
            mistyped.append(Violation(parameter, value, None, expected))
    return mistyped


def validate(policy: AutoScalePolicy) -> None:
    """Raise InvalidPolicy, which names each invalid parameter, its value and the rule that it violates, unless the
    policy is valid.
    """
    broken_rules = violations(policy)
    if broken_rules:
        raise InvalidPolicy(f"Invalid auto split/merge configuration: {'; '.join(map(str, broken_rules))}")
