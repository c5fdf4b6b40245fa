"""Ways of cutting, by name."""

from __future__ import annotations

import pytest

from controller.domain.errors import InvalidInput
from controller.domain.split_points.midpoint import midpoint
from controller.domain.split_points.registry import split_point
from controller.domain.split_points.weighted import weighted


def test_a_way_is_found_by_its_name() -> None:
    assert split_point("midpoint") is midpoint
    assert split_point("weighted") is weighted


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="'median' is unknown; choose one of midpoint, weighted"):
        split_point("median")
