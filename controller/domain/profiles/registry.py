"""The profiles by name: what answers, and the version of its rules that the ledger keeps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from controller.domain.decision import Decision, Lane
from controller.domain.lanes.ground import Ground
from controller.domain.profiles import adaptive, pip483


class Profile(NamedTuple):
    """`answer` takes what a valid policy is decided on and gives acts on disjoint segments."""

    answer: Callable[[Ground, Collection[Lane]], tuple[Decision, ...]]
    code_version: str


PROFILES_BY_NAME: Mapping[str, Profile] = MappingProxyType(
    {
        "adaptive": Profile(adaptive.answer, adaptive.CODE_VERSION),
        "pip483": Profile(pip483.answer, pip483.CODE_VERSION),
    }
)
"""Every name in `policy.PROFILES`."""
