"""Parameters: defaults, three levels field by field, the rules they must keep together, documents."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.errors import InvalidPolicy
from controller.domain.load_record import METRICS
from controller.domain.policy import (
    MAX_SECONDS,
    OVERRIDABLE_PARAMETERS,
    PARAMETERS,
    AutoScalePolicy,
    PolicyOverride,
    UnreadablePolicy,
    resolve,
    validate,
    violations,
)
from controller.domain.policy_parameters import read_parameters

PREFIX = "Invalid auto split/merge configuration"
DEFAULT = AutoScalePolicy()
NAN = float("nan")
DURATIONS = [parameter for parameter in PARAMETERS if parameter.endswith("_seconds")]

_VALUES: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-10, 10**6),
    float: st.floats(0, 1e12) | st.integers(0, 10**9),
    str: st.sampled_from(["pip483", "other"]),
}
overrides = st.fixed_dictionaries(
    {}, optional={parameter: _VALUES[kind] for parameter, kind in OVERRIDABLE_PARAMETERS.items()}
).map(lambda parameters: PolicyOverride(**parameters))


def test_the_defaults_are_pulsars() -> None:
    assert DEFAULT.to_document() == {
        "enabled": True,
        "max_segments": 64,
        "min_segments": 1,
        "max_dag_depth": 10,
        "split_cooldown_seconds": 60,
        "rebucket_cooldown_seconds": 60,
        "bucket_idle_seconds": 3600,
        "merge_cooldown_seconds": 300,
        "merge_window_seconds": 300,
        "split_vs_rebucket_min_msg_rate_in": 1_000,
        "entry_bucket_budget": 4,
        "entry_bucket_max_per_segment": 1024,
        "split_msg_rate_in": 10_000,
        "split_byte_rate_in": 50_000_000,
        "split_msg_rate_out": 50_000,
        "split_byte_rate_out": 250_000_000,
        "merge_msg_rate_in": 1_000,
        "merge_byte_rate_in": 5_000_000,
        "merge_msg_rate_out": 5_000,
        "merge_byte_rate_out": 25_000_000,
        "load_stale_after_seconds": 300,
        "load_change_threshold": 0.25,
        "target_use": 0.9,
        "overload_tolerance": 0.15,
        "reseal_price_segment_seconds": 7_800,
        "reconnection_price_segment_seconds": 1,
        "load_memory_seconds": 2_700,
        "reconnections_per_minute": 3_000,
        "cluster_reconnections_per_minute": 30_000,
        "approval_merges": False,
        "approval_min_segments": 0,
        "approval_wait_seconds": 86_400,
        "approval_default": "reject",
        "approval_hold_seconds": 86_400,
        "profile": "pip483",
        "strict_pulsar": False,
        "subscription_consumers": "cleave",
    }
    validate(DEFAULT)


@pytest.mark.parametrize(
    ("parameter", "value", "says"),
    [
        ("min_segments", 0, "min_segments = 0 must be >= 1"),
        ("max_segments", 0, "max_segments = 0 must be >= min_segments = 1"),
        ("max_dag_depth", -1, "max_dag_depth = -1 must be >= 0"),
        ("load_stale_after_seconds", 0, "load_stale_after_seconds = 0 must be >= 1"),
        *((parameter, -1, f"{parameter} = -1 must be >= ") for parameter in DURATIONS),
        *(
            (parameter, MAX_SECONDS + 1, f"{parameter} = {MAX_SECONDS + 1} must be <= ")
            for parameter in DURATIONS
        ),
        ("split_vs_rebucket_min_msg_rate_in", -0.5, "split_vs_rebucket_min_msg_rate_in = -0.5 must be >= 0"),
        ("split_vs_rebucket_min_msg_rate_in", NAN, "split_vs_rebucket_min_msg_rate_in = nan must be >= 0"),
        ("entry_bucket_budget", 0, "entry_bucket_budget = 0 must be >= 1"),
        ("entry_bucket_max_per_segment", 0, "entry_bucket_max_per_segment = 0 must be >= 1"),
        ("entry_bucket_max_per_segment", 65_537, "entry_bucket_max_per_segment = 65537 must be <= 65536"),
        *((f"split_{metric}", 0.0, f"split_{metric} = 0.0 must be > 0") for metric in METRICS),
        *((f"split_{metric}", NAN, f"split_{metric} = nan must be > 0") for metric in METRICS),
        *((f"merge_{metric}", -1.0, f"merge_{metric} = -1.0 must be >= 0") for metric in METRICS),
        *((f"merge_{metric}", NAN, f"merge_{metric} = nan must be >= 0") for metric in METRICS),
        *(
            (
                f"merge_{metric}",
                getattr(DEFAULT, f"split_{metric}"),
                f"must be > merge_{metric} = {getattr(DEFAULT, f'split_{metric}')}",
            )
            for metric in METRICS
        ),
        ("load_change_threshold", -0.1, "load_change_threshold = -0.1 must be >= 0"),
        ("load_change_threshold", NAN, "load_change_threshold = nan must be >= 0"),
        ("profile", "magic", "profile = magic must be one of adaptive, pip483"),
        (
            "subscription_consumers",
            "java",
            "subscription_consumers = java must be one of cleave, stock",
        ),
    ],
)
def test_each_broken_rule_names_the_parameter_its_value_and_the_bound(
    parameter: str, value: Any, says: str
) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        validate(replace(DEFAULT, **{parameter: value}))
    assert str(refused.value).startswith(PREFIX)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("min_segments", 64),
        ("max_dag_depth", 0),
        *(
            (parameter, 0)
            for parameter in DURATIONS
            if parameter not in ("load_stale_after_seconds", "approval_wait_seconds")
        ),
        ("approval_wait_seconds", 60),
        ("approval_default", "approve"),
        ("subscription_consumers", "stock"),
        ("split_vs_rebucket_min_msg_rate_in", 0.0),
        ("entry_bucket_max_per_segment", 1),
        ("entry_bucket_max_per_segment", 65_536),
        *((f"merge_{metric}", 0.0) for metric in METRICS),
        *((f"split_{metric}", float("inf")) for metric in METRICS),
        ("load_change_threshold", 0.0),
        ("enabled", False),
    ],
)
def test_bounds_themselves_are_allowed(parameter: str, value: Any) -> None:
    assert violations(replace(DEFAULT, **{parameter: value})) == ()


def test_every_broken_rule_is_listed_at_once() -> None:
    with pytest.raises(InvalidPolicy, match=r"min_segments = 0 .*; max_dag_depth = -1"):
        validate(replace(DEFAULT, min_segments=0, max_dag_depth=-1))


HOSTILE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from([10**400, -(10**400), 10**5000, Decimal("1e400"), "1e400", [], [1], {}, {"a": 1}, b"8"]),
)
"""What a parameter may hold that was set past every check."""


@given(st.dictionaries(st.sampled_from(list(PARAMETERS)), HOSTILE, min_size=1))
def test_whatever_a_parameter_holds_the_rules_answer(parameters: dict[str, Any]) -> None:
    policy = replace(DEFAULT, **parameters)
    broken = violations(policy)

    for violation in broken:
        assert violation.parameter in str(violation)
    for parameter in parameters.keys() - {violation.parameter for violation in broken}:
        assert list(read_parameters({parameter: parameters[parameter]}, PARAMETERS))
    if not broken:
        json.dumps(policy.to_document(), allow_nan=False)


@pytest.mark.parametrize(
    ("parameter", "value", "says"),
    [
        ("enabled", "false", "enabled = 'false' must be true or false"),
        ("max_segments", "many", "max_segments = 'many' must be a whole number"),
        ("max_segments", 8.5, "max_segments = 8.5 must be a whole number"),
        ("merge_cooldown_seconds", None, "merge_cooldown_seconds = None must be a whole number"),
        ("split_msg_rate_in", 10**400, "characters) must be a number"),
        ("split_msg_rate_in", True, "split_msg_rate_in = True must be a number"),
        ("profile", ["pip483"], "profile = ['pip483'] must be a text"),
    ],
)
def test_a_parameter_of_another_type_is_a_violation(parameter: str, value: Any, says: str) -> None:
    [violation] = violations(replace(DEFAULT, **{parameter: value}))

    assert says in str(violation)


def test_only_a_policy_that_cannot_be_read_is_called_so() -> None:
    [named] = violations(replace(DEFAULT, profile="unreadable: not at all"))
    [unreadable] = violations(UnreadablePolicy(why="topic's policy: max_segments = '8'"))

    assert str(named) == "profile = unreadable: not at all must be one of adaptive, pip483"
    assert str(unreadable) == "unreadable: topic's policy: max_segments = '8'"
    with pytest.raises(InvalidPolicy, match="'unreadable' cannot be set here"):
        AutoScalePolicy.from_document({"unreadable": "x"})


def test_levels_valid_apart_are_refused_together() -> None:
    namespace, topic = PolicyOverride(min_segments=10), PolicyOverride(max_segments=5)
    assert violations(resolve(DEFAULT, namespace)) == ()
    assert violations(resolve(DEFAULT, None, topic)) == ()
    (broken,) = violations(resolve(DEFAULT, namespace, topic))
    assert (broken.parameter, broken.value, broken.needed) == ("max_segments", 5, 10)


@given(overrides, overrides)
def test_each_field_comes_from_the_topic_else_the_namespace_else_the_cluster(
    namespace: PolicyOverride, topic: PolicyOverride
) -> None:
    cluster = replace(DEFAULT, max_segments=7, entry_bucket_budget=9)
    found = resolve(cluster, namespace, topic)
    for parameter in PARAMETERS:
        expected = topic.parameters.get(
            parameter, namespace.parameters.get(parameter, getattr(cluster, parameter))
        )
        assert getattr(found, parameter) == expected


def test_without_overrides_the_clusters_policy_is_in_force() -> None:
    assert resolve(DEFAULT) is DEFAULT
    assert resolve(DEFAULT, PolicyOverride(), PolicyOverride()) is DEFAULT


@given(overrides)
def test_an_override_survives_json_and_other_processes(override: PolicyOverride) -> None:
    document = json.loads(json.dumps(override.to_document()))
    for twin in (
        PolicyOverride.from_document(document),
        pickle.loads(pickle.dumps(override)),
        copy.deepcopy(override),
    ):
        assert twin == override
        assert hash(twin) == hash(override)
        assert twin.to_document() == document


@given(overrides, overrides)
def test_a_policy_survives_json(namespace: PolicyOverride, topic: PolicyOverride) -> None:
    policy = resolve(DEFAULT, namespace, topic)
    assert AutoScalePolicy.from_document(json.loads(json.dumps(policy.to_document()))) == policy


def test_a_document_need_not_be_complete_and_null_means_unset() -> None:
    assert AutoScalePolicy.from_document({"max_segments": 8, "enabled": None}) == replace(
        DEFAULT, max_segments=8
    )
    assert PolicyOverride.from_document({"max_segments": None}) == PolicyOverride()


def test_an_override_reads_like_a_policy_with_holes() -> None:
    override = PolicyOverride(max_segments=8, merge_msg_rate_in=5)
    assert (override.max_segments, override.merge_msg_rate_in, override.enabled) == (8, 5.0, None)
    assert repr(override) == "PolicyOverride(max_segments=8, merge_msg_rate_in=5.0)"
    assert override != PolicyOverride(max_segments=8)
    assert override != {"max_segments": 8}
    with pytest.raises(AttributeError, match="no_such_parameter"):
        _ = override.no_such_parameter
    with pytest.raises(AttributeError, match="immutable"):
        override.max_segments = 9


@pytest.mark.parametrize(
    "parameter", ["max_segmnets", "entry_bucket_budget", "entry_bucket_max_per_segment", "self"]
)
def test_a_parameter_that_cannot_be_overridden_is_refused_by_name(parameter: str) -> None:
    with pytest.raises(InvalidPolicy, match=f"{PREFIX}: '{parameter}' cannot be set here"):
        PolicyOverride.from_document({parameter: 1})
