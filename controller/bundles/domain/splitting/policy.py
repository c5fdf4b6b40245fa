"""Split policy of a namespace: triggers (`triggers`) and cuts (`algorithms`), as parameters that it can override; and
the split algorithms by the name that a policy or an operator gives.

Defaults are Pulsar's where Pulsar has the parameter. The overrides are stored with the namespace. Names of algorithms are Pulsar's, in its
exact case. A broker gets the cut points of every algorithm as positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Self

from controller.bundles.domain.splitting.algorithms.base import (
    CutRefusal,
    CutRefusalReason,
    SplitAlgorithm,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.algorithms.flow_or_qps_equally import flow_or_qps_equally
from controller.bundles.domain.splitting.algorithms.isolate_outstanding import isolate_outstanding
from controller.bundles.domain.splitting.algorithms.load_equally import load_equally
from controller.bundles.domain.splitting.algorithms.without_load import (
    range_equally,
    specified_positions,
    specified_topic_count_equally,
    topic_count_equally,
)
from controller.bundles.domain.splitting.thresholds import SplitThresholds
from controller.bundles.domain.splitting.triggers import TriggerSettings, trigger_rules
from controller.domain.errors import InvalidInput, InvalidPolicy
from controller.domain.named import entry_named
from controller.domain.policy_parameters import ParameterValue, read_parameters, write_parameter

DEFAULT_SPLIT_ALGORITHM = "range_equally_divide"
"""`defaultNamespaceBundleSplitAlgorithm`."""

SPLIT_ALGORITHMS: Mapping[str, SplitAlgorithm] = {
    "range_equally_divide": range_equally,
    "topic_count_equally_divide": topic_count_equally,
    "specified_positions_divide": specified_positions,
    "flow_or_qps_equally_divide": flow_or_qps_equally,
    "specified_topic_count_equally_divide": specified_topic_count_equally,
    "isolate_outstanding": isolate_outstanding,
    "load_equally_divide": load_equally,
}

NAMED_BY_PEOPLE: Mapping[str, str] = {
    "specified_positions_divide": "positions",
    "specified_topic_count_equally_divide": "a topic",
}
"""Algorithms that no policy can use, and the options that a request must name for them."""


def split_algorithm(name: str) -> SplitAlgorithm:
    """Return the algorithm of that name. Raises InvalidInput for an unknown name; the message lists the names."""
    return entry_named("split algorithm", name, SPLIT_ALGORITHMS)


def plan_split(name: str, request: SplitRequest) -> SplitPlan | CutRefusal:
    """Return the cuts of the algorithm with the load of each part, or its refusal.

    A bundle that is too narrow, a budget of 0, and a plan over the budget are refused, whatever the algorithm. Raises InvalidInput for an
    unknown name or, after the first two of these refusals, for options that the algorithm cannot use.
    """
    algorithm = split_algorithm(name)
    bundle, budget = request.bundle, request.options.bundle_budget
    if not bundle.can_split:
        return CutRefusal(
            str(bundle), CutRefusalReason.NOT_SPLITTABLE, "hashes", bundle.upper - bundle.lower, 2
        )
    if budget == 0:
        return CutRefusal(str(bundle), CutRefusalReason.AT_MAX_BUNDLES, "bundles", 0, 1)
    answer = algorithm(request)
    if isinstance(answer, CutRefusal):
        return answer
    plan = SplitPlan.of(name, request, answer)
    if budget is not None and len(plan.cuts) > budget:
        return CutRefusal(str(bundle), CutRefusalReason.AT_MAX_BUNDLES, "bundles", budget, len(plan.cuts))
    return plan


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """Parameters of one namespace; rates are in and out together, per second.

    `rules` are those of a load manager, `modular` or `extensible`. `algorithm` chooses the cuts; the algorithm must be one that needs no
    positions or topics named by a person. If the algorithm refuses, `fallback_algorithm` is used (empty: none). `max_sessions` 0: no
    limit. Raises InvalidPolicy at construction for values that can never be valid.
    """

    enabled: bool = True
    rules: str = "extensible"
    algorithm: str = "load_equally_divide"
    fallback_algorithm: str = "topic_count_equally_divide"
    max_topics: float = 1000.0
    max_sessions: float = 1000.0
    max_msg_rate: float = 30_000.0
    max_byte_rate: float = 100.0 * 1024 * 1024
    max_bundles: int = 128
    cooldown_seconds: int = 120

    def __post_init__(self) -> None:
        try:
            self.trigger_settings  # noqa: B018  # built to be checked
            self.options(0)
            for name in (self.algorithm, self.fallback_algorithm or self.algorithm):
                split_algorithm(name)
                if name in NAMED_BY_PEOPLE:
                    raise InvalidInput(
                        f"split algorithm {name} needs {NAMED_BY_PEOPLE[name]}, which only a split by hand can give"
                    )
        except InvalidInput as error:
            raise InvalidPolicy(f"Invalid bundle split configuration: {error.message}") from error

    @property
    def thresholds(self) -> SplitThresholds:
        """The thresholds above which a bundle is hot."""
        return SplitThresholds(self.max_topics, self.max_sessions, self.max_msg_rate, self.max_byte_rate)

    @property
    def trigger_settings(self) -> TriggerSettings:
        """The rules for splitting a hot bundle."""
        return TriggerSettings(
            trigger_rules(self.rules), self.thresholds, self.enabled, self.max_bundles, self.cooldown_seconds
        )

    def options(self, budget: int) -> SplitOptions:
        """Return the options of an algorithm: the rates of the policy as limits, `budget` (the number of bundles that the namespace may
        still gain, at least 0), and the defaults of the others.
        """
        return SplitOptions(
            max_msg_rate=self.max_msg_rate, max_byte_rate=self.max_byte_rate, bundle_budget=budget
        )

    def plan(self, request: SplitRequest) -> SplitPlan | CutRefusal:
        """Return the cuts of the policy's algorithm with the options of the request. If the algorithm refuses and the
        policy has a fallback algorithm, return the cuts of the fallback. Without a fallback, or if both refuse,
        return the refusal of the first algorithm. `enabled` and the thresholds are not checked here. Raises
        InvalidInput for options that an algorithm cannot use.
        """
        plan = plan_split(self.algorithm, request)
        if isinstance(plan, SplitPlan) or not self.fallback_algorithm:
            return plan
        fallback = plan_split(self.fallback_algorithm, request)
        return fallback if isinstance(fallback, SplitPlan) else plan

    def to_document(self) -> dict[str, ParameterValue]:
        """Return every parameter by name, as JSON values."""
        return {parameter: write_parameter(value) for parameter, value in asdict(self).items()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read a policy or overrides of it. A parameter that is absent or null has its default. Raises InvalidPolicy for an unknown
        parameter, a value of another type, or values that can never be valid.
        """
        values: dict[str, Any] = dict(read_parameters(document, SPLIT_PARAMETERS, "bundle split"))
        return cls(**values)


def read_stored(overrides: Mapping[str, Any]) -> tuple[SplitPolicy, str | None]:
    """Return the policy of stored overrides, and None as the reason. Raises no error.

    If an older version left the overrides unreadable, return the default policy and the reason. The limits of the defaults hold for such
    a namespace, but no cycle splits it.
    """
    try:
        return SplitPolicy.from_document(overrides), None
    except InvalidPolicy as error:
        return SplitPolicy(), error.message


SPLIT_PARAMETERS: Final[Mapping[str, type]] = MappingProxyType(
    {f.name: type(f.default) for f in fields(SplitPolicy)}
)
"""Every parameter and its type, in the order of declaration."""
