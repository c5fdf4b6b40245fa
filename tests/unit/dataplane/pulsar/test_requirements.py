"""What a namespace needs so that its logs can have gates; the other demands are looked at on a real broker."""

from __future__ import annotations

import pytest

from controller.dataplane.pulsar.requirements import DEMANDS, GATE_DEMANDS, Namespace


def unmet(seen: Namespace) -> list[str]:
    """Names of what the namespace lacks for gates."""
    return [demand.name for demand in GATE_DEMANDS if not demand.is_met(seen)]


def test_a_broker_of_today_with_its_own_defaults_has_gates() -> None:
    assert unmet(Namespace({}, {}, version="4.2.4")) == []


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


@pytest.mark.parametrize(
    ("status", "lacking"),
    [
        (401, "Cleave may set policies of topics"),
        (403, "Cleave may set policies of topics"),
        (405, "topics have policies"),
    ],
)
def test_answers_about_a_policy(status: int, lacking: str) -> None:
    assert unmet(Namespace({}, {}, version="4.2.4", policy_status=status)) == [lacking]


@pytest.mark.parametrize("version", ["3.3.9", "3.0.0", "", "a fork"])
def test_brokers_that_serve_a_topic_before_its_policies_are_read(version: str) -> None:
    assert unmet(Namespace({}, {}, version=version)) == ["gates hold on brokers of this version"]


def test_the_doctor_says_what_is_lacking() -> None:
    assert all(demand in DEMANDS for demand in GATE_DEMANDS)
