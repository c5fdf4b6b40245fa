"""Split policy of a namespace: triggers (`triggers`) and cuts (`algorithms`), as parameters that it can override.

Defaults are Pulsar's where Pulsar has the parameter. The overrides are stored with the namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Self

from controller.bundles.domain.splitting.algorithms.base import (
    CutRefusal,
    SplitOptions,
    SplitPlan,
    SplitRequest,
)
from controller.bundles.domain.splitting.algorithms.registry import (
    NAMED_BY_PEOPLE,
    plan_split,
    split_algorithm,
)
from controller.bundles.domain.splitting.thresholds import SplitThresholds
from controller.bundles.domain.splitting.triggers import TriggerSettings, trigger_rules
from controller.domain.errors import InvalidInput, InvalidPolicy
from controller.domain.policy_parameters import ParameterValue, read_parameters, write_parameter


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
