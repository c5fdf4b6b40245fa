"""What a namespace needs so that its logs can have gates, and what brokers do by default; the other demands are looked at on a real broker."""

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


EVICTS = {"backlogQuotaDefaultRetentionPolicy": "consumer_backlog_eviction"}
NO_LIMITS = {
    "backlogQuotaDefaultLimitGB": "-1.0",
    "backlogQuotaDefaultLimitBytes": "-1",
    "backlogQuotaDefaultLimitSecond": "-1",
}
HOLDS = {"policy": "producer_request_hold"}


def is_met(name: str, policies: dict[str, Any], broker: dict[str, str]) -> bool:
    """Whether the namespace meets the demand of this name."""
    [demand] = [demand for demand in DEMANDS if demand.name == name]
    return demand.is_met(Namespace(policies, broker))


@pytest.mark.parametrize(
    ("quotas", "broker", "is_kept"),
    [
        pytest.param({}, EVICTS | NO_LIMITS, True, id="no limit"),
        pytest.param({}, EVICTS | {"backlogQuotaDefaultLimitGB": "10.0"}, False, id="by size in GB"),
        pytest.param({}, EVICTS | {"backlogQuotaDefaultLimitBytes": "1000"}, False, id="by size in bytes"),
        pytest.param({}, EVICTS | {"backlogQuotaDefaultLimitSecond": "60"}, False, id="by age"),
        pytest.param({}, {"backlogQuotaDefaultLimitGB": "10.0"}, True, id="producers are held"),
        pytest.param(
            {"destination_storage": HOLDS},
            EVICTS | {"backlogQuotaDefaultLimitGB": "10.0"},
            True,
            id="the namespace's own quota decides",
        ),
        pytest.param(
            {"destination_storage": HOLDS},
            EVICTS | {"backlogQuotaDefaultLimitSecond": "60"},
            False,
            id="but for its own type alone",
        ),
    ],
)
def test_what_the_brokers_default_quota_evicts_is_said(
    quotas: dict[str, Any], broker: dict[str, str], *, is_kept: bool
) -> None:
    assert is_met("nothing unread is evicted", {"backlog_quota_map": quotas}, broker) is is_kept


@pytest.mark.parametrize(
    ("name", "policies", "broker", "expected"),
    [
        ("exclusive consumers are allowed", [], "[Shared, Key_Shared]", False),
        ("exclusive consumers are allowed", [], "[Exclusive, Shared]", True),
        ("exclusive consumers are allowed", ["Exclusive"], "[Shared]", True),
        ("key-shared consumers are allowed", [], "[Exclusive, Shared]", False),
        ("key-shared consumers are allowed", ["Exclusive", "Key_Shared"], "[Exclusive]", True),
        ("key-shared consumers are allowed", ["Exclusive", "Shared"], "[Key_Shared]", False),
    ],
)
def test_the_brokers_types_of_subscriptions_hold_where_the_namespace_has_none(
    name: str, policies: list[str], broker: str, *, expected: bool
) -> None:
    enabled = {"subscription_types_enabled": policies}
    assert is_met(name, enabled, {"subscriptionTypesEnabled": broker}) is expected


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("encryption is not required, or producers encrypt", "encryptionRequireOnProducer"),
        ("brokers do not enforce schemas", "isSchemaValidationEnforced"),
    ],
)
def test_what_brokers_demand_of_all_namespaces_is_said(name: str, setting: str) -> None:
    assert is_met(name, {}, {})
    assert not is_met(name, {}, {setting: "true"})


def test_brokers_that_report_no_single_topics_are_said() -> None:
    setting = "exposeTopicLevelMetricsInPrometheus"
    assert is_met("brokers report single topics", {}, {})
    assert not is_met("brokers report single topics", {}, {setting: "false"})
