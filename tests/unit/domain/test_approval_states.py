"""The approvals that a request for a level may answer."""

from __future__ import annotations

import pytest

from controller.domain.approval_states import covers
from controller.domain.names import CLUSTER

LEVELS = (CLUSTER, "acme/shop", "topic://acme/shop/orders", "acme/shopping", "topic://acme/shopping/orders")


@pytest.mark.parametrize(
    ("requested", "covered"),
    [
        (None, LEVELS[1:]),
        (CLUSTER, LEVELS),
        ("acme/shop", LEVELS[1:3]),
        ("topic://acme/shop/orders", LEVELS[2:3]),
    ],
)
def test_a_request_covers_its_level_and_the_topics_of_its_namespace(
    requested: str | None, covered: tuple[str, ...]
) -> None:
    assert tuple(level for level in LEVELS if covers(requested, level)) == covered
