"""When a stored policy is the policy in force."""

from __future__ import annotations

from typing import Any

import pytest

from controller.domain.policy import AutoScalePolicy
from controller.services.policy_candidates.tuning import _is_document_of

IN_FORCE = AutoScalePolicy(split_byte_rate_out=1e30)


@pytest.mark.parametrize(
    ("changes", "lacks", "expected"),
    [
        ({}, "", True),
        ({}, "max_segments", True),  # an older version wrote it, and the parameter has its default
        ({}, "split_byte_rate_out", False),
        ({"split_byte_rate_out": 10**30}, "", True),  # as PostgreSQL returns it
        ({"max_segments": 3}, "", False),
        ({"of_a_newer_version": 1}, "", False),
    ],
)
def test_a_stored_policy_is_compared_by_its_values(
    changes: dict[str, Any], lacks: str, expected: bool
) -> None:
    stored = {name: value for name, value in (IN_FORCE.to_document() | changes).items() if name != lacks}
    assert _is_document_of(IN_FORCE, stored) is expected
