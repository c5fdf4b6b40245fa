"""The profiles there are."""

from __future__ import annotations

from controller.domain.policy import PROFILES
from controller.domain.profiles.registry import PROFILES_BY_NAME


def test_each_name_that_a_policy_may_have_is_answered_for() -> None:
    assert set(PROFILES_BY_NAME) == set(PROFILES)
