"""The profiles by name: their functions, and the version of their rules that the decision log stores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from controller.domain.decision import Decision, Lane
from controller.domain.profiles import adaptive, pip483
from controller.domain.profiles.evaluation_context import EvaluationContext


class Profile(NamedTuple):
    """A rule set. `answer` takes the context of an evaluation under a valid policy, and the lanes to evaluate. It returns
    actions on disjoint segments, and adds its refusals to the context.
    """

    answer: Callable[[EvaluationContext, Collection[Lane]], tuple[Decision, ...]]
    code_version: str


PROFILES_BY_NAME: Mapping[str, Profile] = MappingProxyType(
    {
        "adaptive": Profile(adaptive.answer, adaptive.CODE_VERSION),
        "pip483": Profile(pip483.answer, pip483.CODE_VERSION),
    }
)
"""Every profile that `policy.PROFILES` names."""
