"""What a namespace needs so that its logs can have gates; the other demands are looked at on a real broker."""

from __future__ import annotations

from typing import Any

import pytest

from controller.dataplane.pulsar.requirements import DEMANDS, GATE_DEMANDS, Namespace


def unmet(seen: Namespace) -> list[str]:
    """Names of what the namespace lacks for gates."""
    return [demand.name for demand in GATE_DEMANDS if not demand.is_met(seen)]


VERSION = "gates hold on brokers of this version"


@pytest.mark.parametrize(
    ("seen", "lacking"),
    [
        ({"version": "4.2.4"}, []),
        ({"version": "4.2.4", "policy_status": 401}, ["Cleave may set policies of topics"]),
        ({"version": "4.2.4", "policy_status": 403}, ["Cleave may set policies of topics"]),
        ({"version": "4.2.4", "policy_status": 405}, ["topics have policies"]),
        # These versions serve a topic before they have read its policies.
        ({"version": "3.3.9"}, [VERSION]),
        ({"version": "3.0.0"}, [VERSION]),
        ({"version": ""}, [VERSION]),
        ({"version": "a fork"}, [VERSION]),
    ],
    ids=lambda value: "-".join(str(part) for part in (value.values() if isinstance(value, dict) else value)),
)
def test_gates_need_a_recent_broker_that_lets_cleave_set_policies(
    seen: dict[str, Any], lacking: list[str]
) -> None:
    assert unmet(Namespace({}, {}, **seen)) == lacking


@pytest.mark.parametrize(
    ("setting", "lacking"),
    [
        ("topicLevelPoliciesEnabled", "topics have policies"),
        ("systemTopicEnabled", "topics have policies"),
        ("dispatchThrottlingOnNonBacklogConsumerEnabled", "dispatch rates hold without a backlog"),
    ],
)
def test_settings_of_a_broker_without_gates(setting: str, lacking: str) -> None:
    assert unmet(Namespace({}, {setting: "false"}, version="4.2.4")) == [lacking]
    assert unmet(Namespace({}, {setting: "true"}, version="4.2.4")) == []


def test_the_doctor_says_what_is_lacking() -> None:
    assert all(demand in DEMANDS for demand in GATE_DEMANDS)
