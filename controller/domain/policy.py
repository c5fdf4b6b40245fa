"""The auto-scaling policy: every knob, three levels resolved field by field, validated together.

The levels are cluster, namespace and topic, as in PIP-483: each field is taken from the topic's override, else the
namespace's, else the cluster's. Setting an override replaces the whole document of that level. Levels valid apart can
be invalid together, so `violations` looks at the resolved policy. The store keeps the overrides; the evaluator and the
aggregation act on the knobs.
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
from controller.domain.hash_range import RING_SIZE
from controller.domain.knobs import KnobValue, misfit, read_knobs, write_knob
from controller.domain.load import DEFAULT_CHANGE_THRESHOLD, METRICS, LoadStats, LoadThresholds
from controller.domain.shown import shown

PROFILES = ("adaptive", "pip483")
"""The rule sets an evaluator knows, see `profiles`."""

APPROVAL_DEFAULTS = ("approve", "reject")
"""What holds when nobody answers."""

MAX_SECONDS = 100 * 365 * 86_400
"""A century bounds every duration, so that an instant plus a duration is always a date."""


@dataclass(frozen=True, slots=True)
class AutoScalePolicy:
    """A complete set of knobs; the defaults are Pulsar's (PIP-483, PIP-486) where Pulsar has the knob.

    Built unchecked, see `violations`. Rates are per segment and second. `max_dag_depth` bounds the
    merges in a segment's ancestry. `bucket_idle_seconds`: buckets that nobody needs are given up when no consumer
    has come or gone for so long. `load_stale_after_seconds`: a reading older than this is neither hot
    nor cold. `load_change_threshold`: relative change of a rate that rewrites its record.
    `approval_merges`, `approval_min_segments`: acts that leave fewer segments, and acts that seal or make at least so many
    (0: none), wait for a person (see `approvals`), for `approval_wait_seconds`, then for `approval_default`. What was
    refused is not proposed again for `approval_hold_seconds`.
    `strict_pulsar`: decide and keep load records by Pulsar 5's rules, known defects included; not where
    the data plane shares no buckets (see `evaluator`).
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

    @property
    def thresholds(self) -> LoadThresholds:
        """The eight thresholds in the order of `METRICS`."""
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

    def to_document(self) -> dict[str, KnobValue]:
        """Every knob by name, as JSON values (`write_knob`)."""
        return {knob: write_knob(getattr(self, knob)) for knob in KNOBS}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Reads a cluster's document: what is absent or null has its default. Raises InvalidPolicy."""
        values: dict[str, Any] = dict(read_knobs(document, KNOBS))
        return cls(**values)


KNOBS: Mapping[str, type] = MappingProxyType({f.name: type(f.default) for f in fields(AutoScalePolicy)})
"""Every knob and its type, in the order of declaration."""


@dataclass(frozen=True, slots=True)
class UnreadablePolicy(AutoScalePolicy):
    """Stands for a policy of which something cannot be read, and `why`. It is never valid: its knobs mean nothing."""

    why: str = ""


OVERRIDABLE_KNOBS: Mapping[str, type] = MappingProxyType(
    {knob: kind for knob, kind in KNOBS.items() if not knob.startswith(("entry_bucket_", "cluster_"))}
)
"""What a namespace or a topic may set. The bucket knobs hold for a cluster, as in PIP-486, and so does its budget."""


class PolicyOverride:
    """Some knobs set, the others None (inherit): `PolicyOverride(max_segments=8).max_segments`.

    Immutable and compared by value. Raises InvalidPolicy for a knob that does not exist or may not be
    overridden, or a value of the wrong type; whether the values fit together only `violations` of the
    resolved policy can say.
    """

    __slots__ = ("_knobs",)

    _knobs: Mapping[str, KnobValue]

    def __init__(self, /, **knobs: KnobValue | None) -> None:
        self._take(knobs)

    def _take(self, document: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_knobs", MappingProxyType(dict(read_knobs(document, OVERRIDABLE_KNOBS))))

    def __getattr__(self, knob: str) -> Any:
        if knob in OVERRIDABLE_KNOBS:
            return self._knobs.get(knob)
        raise AttributeError(f"a policy override has no knob {knob!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a policy override is immutable; make a new one with {name}={value!r}")

    def __eq__(self, other: object) -> bool:
        return self._knobs == other._knobs if isinstance(other, PolicyOverride) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._knobs.items()))

    def __repr__(self) -> str:
        return f"PolicyOverride({', '.join(f'{knob}={value!r}' for knob, value in self._knobs.items())})"

    def __reduce__(self) -> tuple[Callable[..., PolicyOverride], tuple[dict[str, KnobValue]]]:
        return PolicyOverride.from_document, (self.to_document(),)

    @property
    def knobs(self) -> Mapping[str, KnobValue]:
        """What is set, in the order of declaration; read-only."""
        return self._knobs

    def to_document(self) -> dict[str, KnobValue]:
        """What is set, as JSON values; `{}` overrides nothing."""
        return {knob: write_knob(value) for knob, value in self._knobs.items()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PolicyOverride:
        """Reads `to_document`'s; null is the same as absent. Raises InvalidPolicy naming the knob."""
        override = cls()
        override._take(document)
        return override


class PolicyLevel(StrEnum):
    """Where a policy is stored."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TOPIC = "topic"


def resolve(
    cluster: AutoScalePolicy, namespace: PolicyOverride | None = None, topic: PolicyOverride | None = None
) -> AutoScalePolicy:
    """The policy in force, field by field: topic, else namespace, else cluster. It is not validated."""
    merged: dict[str, Any] = {}
    for override in (namespace, topic):
        if override is not None:
            merged.update(override.knobs)
    return replace(cluster, **merged) if merged else cluster


@dataclass(frozen=True, slots=True)
class Violation:
    """A knob that breaks its rule; `needed` is the bound it is held against, None for a choice or a type."""

    knob: str
    value: object
    needed: float | None
    rule: str

    def __str__(self) -> str:
        if isinstance(self.value, UnreadablePolicy):
            return f"unreadable: {self.value.why}"
        is_choice = isinstance(self.value, str) and self.rule.startswith("one of ")
        return f"{self.knob} = {self.value if is_choice else shown(self.value)} must be {self.rule}"


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
}
_DURATIONS = tuple(knob for knob in KNOBS if knob.endswith("_seconds"))

_LEAST_SECONDS = {"load_stale_after_seconds": 1, "approval_wait_seconds": 60}
CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"profile": PROFILES, "approval_default": APPROVAL_DEFAULTS}
)
"""The knobs that are words, and which words there are."""

# A bound is a number or the knob to compare with. Written positively, so that NaN fails.
_RULES: tuple[tuple[str, str, float | str], ...] = (
    ("min_segments", ">=", 1),
    ("max_segments", ">=", "min_segments"),
    ("max_dag_depth", ">=", 0),
    *((knob, ">=", _LEAST_SECONDS.get(knob, 0)) for knob in _DURATIONS),
    *((knob, "<=", MAX_SECONDS) for knob in _DURATIONS),
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
    """Every rule a resolved policy breaks; empty when it is valid. Never raises, whatever the knobs hold."""
    if isinstance(policy, UnreadablePolicy):
        return (Violation("policy", policy, None, "readable"),)
    broken = _wrong_types(policy)
    mistyped = {violation.knob for violation in broken}
    for knob, sign, bound in _RULES:
        if mistyped and not mistyped.isdisjoint((knob, bound)):
            continue
        value = getattr(policy, knob)
        needed = getattr(policy, bound) if isinstance(bound, str) else bound
        if not _OPERATORS[sign](value, needed):
            rule = f"{sign} {bound} = {needed}" if isinstance(bound, str) else f"{sign} {bound}"
            broken.append(Violation(knob, value, needed, rule))
    for knob, choices in CHOICES.items():
        value = getattr(policy, knob)
        if value not in choices and knob not in mistyped:
            broken.append(Violation(knob, value, None, f"one of {', '.join(choices)}"))
    if policy.strict_pulsar is True and policy.profile == "adaptive":
        broken.append(
            Violation("strict_pulsar", True, None, "false unless profile = pip483; set that as well")
        )
    return tuple(broken)


def _wrong_types(policy: AutoScalePolicy) -> list[Violation]:
    broken = []
    for knob, kind in KNOBS.items():
        value = getattr(policy, knob)
        if value.__class__ is kind is not int:
            continue
        wanted = misfit(value, kind)
        if wanted is not None:
            broken.append(Violation(knob, value, None, wanted))
    return broken


def validate(policy: AutoScalePolicy) -> None:
    """Raises InvalidPolicy naming each knob, its value and the rule it breaks."""
    broken = violations(policy)
    if broken:
        raise InvalidPolicy(f"Invalid auto split/merge configuration: {'; '.join(map(str, broken))}")
