"""Settings of balancing: bounds, parameters that must fit together, and messages that say what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.bundles.domain.balancing.balance import SHEDDERS, shedder
from controller.bundles.domain.balancing.placement import PLACEMENTS, placement
from controller.bundles.domain.balancing.settings import (
    BALANCE_PARAMETERS,
    PLACEMENT_NAMES,
    SHEDDER_NAMES,
    BalanceSettings,
    validate,
    violations,
)
from controller.domain.errors import InvalidInput, InvalidPolicy


def test_the_defaults_are_valid_and_name_what_there_is() -> None:
    validate(BalanceSettings())
    assert set(SHEDDER_NAMES) == set(SHEDDERS)
    assert set(PLACEMENT_NAMES) == set(PLACEMENTS)


@pytest.mark.parametrize(
    ("parameter", "value", "rule"),
    [
        ("shedder", "magic", "one of even, overload"),
        ("placement", "magic", "one of least_long_term_rate"),
        ("history_weight", 1.5, "<= 1"),
        ("cpu_weight", -1.0, ">= 0"),
        ("grace_seconds", -1, ">= 0"),
        ("grace_seconds", 10**12, "<= 3153600000"),
        ("unload_fraction", 0.0, "> 0"),
        ("unload_fraction", 1.1, "<= 1"),
        ("max_unload_bundles", -2, ">= -1"),
        ("avg_low_usage", 0.4, "below avg_high_usage = 0.4"),
        ("even_hot_goal", 0.2, "below even_hot_band = 0.15"),
        ("even_cold_goal", 0.4, "below even_cold_band = 0.4"),
        ("even_hits", 0, ">= 1"),
        ("overloaded_usage", float("nan"), "> 0"),
        ("overloaded_usage", 85.0, "<= 1"),
        ("avg_high_usage", 40.0, "<= 1"),
        ("transfer_target_std", 25.0, "<= 1"),
        ("transfer_top_bundles", 1, ">= 2"),
        ("even_target_spread", 25.0, "<= 1"),
        ("even_min_usage_gap", 2.0, "<= 1"),
        ("uniform_msg_rate_difference", 50.0, "<= 10"),
    ],
)
def test_a_value_out_of_bounds_is_named_with_its_rule(parameter: str, value: Any, rule: str) -> None:
    broken = violations(replace(BalanceSettings(), **{parameter: value}))

    assert parameter in {one.parameter for one in broken}
    with pytest.raises(
        InvalidPolicy, match=f"bundle balancing configuration: .*{parameter} = .* must be .*{rule}"
    ):
        validate(replace(BalanceSettings(), **{parameter: value}))


def test_bands_that_cannot_keep_the_spread_are_refused_together() -> None:
    wide = BalanceSettings(even_hot_band=0.3, even_cold_band=0.4)
    with pytest.raises(
        InvalidPolicy, match=r"even_hot_band = 0\.3 must be at most even_target_spread² / even_cold_band"
    ):
        validate(wide)
    validate(replace(wide, even_target_spread=0.35))


def test_a_document_with_an_unknown_or_wrong_parameter_is_refused() -> None:
    with pytest.raises(
        InvalidPolicy, match="Invalid bundle balancing configuration: 'colour' cannot be set here"
    ):
        BalanceSettings.from_document({"colour": "red"})
    with pytest.raises(InvalidPolicy, match="even_hits = 'two'; give a whole number"):
        BalanceSettings.from_document({"even_hits": "two"})
    assert BalanceSettings.from_document({"even_hits": 3, "shedder": None}) == BalanceSettings(even_hits=3)


def test_every_parameter_is_in_the_document() -> None:
    assert set(BalanceSettings().to_document()) == set(BALANCE_PARAMETERS)


def test_excluded_namespaces_are_separated_by_commas() -> None:
    settings = BalanceSettings(excluded_namespaces="t/a, t/b")
    assert settings.excludes("t/a")
    assert settings.excludes("t/b")
    assert not settings.excludes("t/c")
    assert not BalanceSettings().excludes("")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="shedder 'x' is unknown; choose one of even, overload"):
        shedder("x")
    with pytest.raises(InvalidInput, match="placement 'x' is unknown; choose one of least_long_term_rate"):
        placement("x")
