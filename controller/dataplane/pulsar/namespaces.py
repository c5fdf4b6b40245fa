"""What a namespace must be set to so that segments live in it safely: one table of demands, looked at and set.

A segment is an ordinary topic, so everything that may happen to topics may happen to it. The demands keep brokers from
deleting segments or subscriptions by themselves, from making a deleted segment anew, and from storing a repeated batch
twice. Nothing is set unless somebody asks for it (`cleave doctor --fix`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from controller.dataplane.pulsar.access import PulsarAccess
from controller.dataplane.pulsar.admin import AdminCalls, Ask, Deadline
from controller.dataplane.pulsar.asks import GONE
from controller.dataplane.pulsar.errors import UnknownAddress, refusal
from controller.dataplane.pulsar.names import namespace_path
from controller.dataplane.pulsar.versions import VERSION, reads_policies_first
from controller.domain.errors import Unsupported

INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
RETENTION = {"retentionTimeInMinutes": 1440, "retentionSizeInMB": -1}
"""A day: enough to go back after a bad release, and bounded."""
_REFUSES_TO_SHOW = frozenset({401, 403})
_NO_SUCH_CALL = 405


class Severity(StrEnum):
    """What it means that a demand is not met."""

    WRONG = "wrong"
    """Data or a segment can be lost, or an operation cannot end."""
    NOTE = "note"
    """Works, but the operator should know what it costs."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """What a namespace is set to, and what its brokers do where it has no setting."""

    policies: Mapping[str, Any]
    broker: Mapping[str, str]
    """Runtime configuration; empty where the token may not see it, which counts as the default."""
    encrypts: bool = False
    """Whether producers with these settings encrypt."""
    version: str = ""
    """Version of the broker that answered: `4.2.4`."""
    policy_status: int = 404
    """Status of the answer to a question for a policy of a topic that does not exist."""

    def of_broker(self, key: str, default: str) -> str:
        """A value of the brokers' configuration."""
        return str(self.broker.get(key, default)).strip().lower()


@dataclass(frozen=True, slots=True)
class Demand:
    """One setting. `path` and `value` put it right where Cleave may; None leaves it to a person."""

    name: str
    severity: Severity
    is_met: Callable[[Namespace], bool]
    why: str
    path: str | None = None
    value: object = None


@dataclass(frozen=True, slots=True)
class Unmet:
    """A demand that a namespace does not meet; `set_now` tells whether it has been put right."""

    namespace: str
    demand: Demand
    set_now: bool = False


def _no_auto_creation(seen: Namespace) -> bool:
    override = seen.policies.get("autoTopicCreationOverride")
    if override is not None:
        return not override.get("allowAutoTopicCreation", True)
    return seen.of_broker("allowAutoTopicCreation", "true") == "false"


def _keeps_inactive(seen: Namespace) -> bool:
    policy = seen.policies.get("inactive_topic_policies")
    if policy is not None:
        return not policy.get("deleteWhileInactive", True)
    return seen.of_broker("brokerDeleteInactiveTopicsEnabled", "true") == "false"


def _keeps_subscriptions(seen: Namespace) -> bool:
    minutes = seen.policies.get("subscription_expiration_time_minutes")
    if minutes is None:
        minutes = seen.of_broker("subscriptionExpirationTimeMinutes", "0")
    return int(minutes) <= 0


def _deduplicates(seen: Namespace) -> bool:
    own = seen.policies.get("deduplicationEnabled")
    return bool(own) if own is not None else seen.of_broker("brokerDeduplicationEnabled", "false") == "true"


def _retains(seen: Namespace) -> bool:
    own = seen.policies.get("retention_policies")
    minutes = own["retentionTimeInMinutes"] if own else seen.of_broker("defaultRetentionTimeInMinutes", "0")
    return int(minutes) != 0


def _takes_bytes(seen: Namespace) -> bool:
    return not seen.policies.get("schema_validation_enforced")


def _takes_schemas(seen: Namespace) -> bool:
    return seen.policies.get("is_allow_auto_update_schema") is not False


def _takes_clear_messages(seen: Namespace) -> bool:
    return seen.encrypts or not seen.policies.get("encryption_required")


def _evicts_nothing(seen: Namespace) -> bool:
    quotas = seen.policies.get("backlog_quota_map") or {}
    return all(quota.get("policy") != "consumer_backlog_eviction" for quota in quotas.values())


def _expires_nothing(seen: Namespace) -> bool:
    own = seen.policies.get("message_ttl_in_seconds")
    return int(own if own is not None else seen.of_broker("ttlDurationDefaultInSeconds", "0")) <= 0


def _allows_exclusive(seen: Namespace) -> bool:
    types = seen.policies.get("subscription_types_enabled") or []
    return not types or "Exclusive" in types


def _allows_key_shared(seen: Namespace) -> bool:
    types = seen.policies.get("subscription_types_enabled") or []
    if types and "Key_Shared" not in types:
        return False
    return seen.of_broker("subscriptionKeySharedEnable", "true") == "true"


def _acknowledges_in_part(seen: Namespace) -> bool:
    """Unknown where the token may not see the configuration, since brokers differ in what they do by themselves."""
    if not seen.broker:
        return False
    return seen.of_broker("acknowledgmentAtBatchIndexLevelEnabled", "true") == "true"


GATE_DEMANDS: tuple[Demand, ...] = (
    Demand(
        "brokers read a topic's policies first",
        Severity.NOTE,
        lambda seen: reads_policies_first(seen.version),
        "subscriptions that standard clients read in the order of keys are refused: before 4.0 a broker serves a topic before the "
        "broker has read the topic's policies, so a gate would let messages pass after a restart; update the brokers",
    ),
    Demand(
        "topics have policies",
        Severity.NOTE,
        lambda seen: (
            seen.policy_status != _NO_SUCH_CALL
            and seen.of_broker("topicLevelPoliciesEnabled", "true") == "true"
            and seen.of_broker("systemTopicEnabled", "true") == "true"
        ),
        "subscriptions that standard clients read in the order of keys are refused: set topicLevelPoliciesEnabled=true and "
        "systemTopicEnabled=true in the brokers' configuration",
    ),
    Demand(
        "dispatch rates hold without a backlog",
        Severity.NOTE,
        lambda seen: seen.of_broker("dispatchThrottlingOnNonBacklogConsumerEnabled", "true") == "true",
        "subscriptions that standard clients read in the order of keys are refused: set "
        "dispatchThrottlingOnNonBacklogConsumerEnabled=true in the brokers' configuration",
    ),
    Demand(
        "Cleave may set policies of topics",
        Severity.NOTE,
        lambda seen: seen.policy_status not in _REFUSES_TO_SHOW,
        "subscriptions that standard clients read in the order of keys are refused: make the role of Cleave's token an admin of the "
        "tenant",
    ),
)
"""What a gate needs; see `gates`. A namespace that meets these demands can have subscriptions for standard clients."""

DEMANDS: tuple[Demand, ...] = (
    Demand(
        "topics on demand are off",
        Severity.WRONG,
        _no_auto_creation,
        "a client that is still connected would make a deleted segment anew, as an empty topic",
        "autoTopicCreation",
        {"allowAutoTopicCreation": False},
    ),
    Demand(
        "inactive topics are kept",
        Severity.WRONG,
        _keeps_inactive,
        "the broker would delete a segment that nobody uses for a while, and with it a range of keys",
        "inactiveTopicPolicies",
        INACTIVE,
    ),
    Demand(
        "subscriptions do not expire",
        Severity.WRONG,
        _keeps_subscriptions,
        "a subscription that waits for its segment's turn would lose its place, and with it messages",
        "subscriptionExpirationTime",
        0,
    ),
    Demand(
        "deduplication is on",
        Severity.NOTE,
        _deduplicates,
        "a batch repeated after a lost answer may be stored twice",
        "deduplication",
        True,
    ),
    Demand(
        "acknowledged messages are retained",
        Severity.NOTE,
        _retains,
        "a seek can go back no further than to what some subscription has not acknowledged",
        "retention",
        RETENTION,
    ),
    Demand(
        "schemas are not enforced",
        Severity.NOTE,
        _takes_bytes,
        "producers without a schema are refused, Cleave's own among them",
        "schemaValidationEnforced",
        False,
    ),
    Demand(
        "new schemas are allowed",
        Severity.WRONG,
        _takes_schemas,
        "a new segment has no schema yet, and its first producer could not register one",
        "isAllowAutoUpdateSchema",
        True,
    ),
    Demand(
        "encryption is not required, or producers encrypt",
        Severity.NOTE,
        _takes_clear_messages,
        "producers that send in the clear are refused: set CLEAVE_PULSAR_ENCRYPTION_KEY and "
        "CLEAVE_PULSAR_ENCRYPTION_PUBLIC_KEY_FILE where applications produce",
    ),
    Demand(
        "nothing unread is evicted",
        Severity.NOTE,
        _evicts_nothing,
        "the backlog quota drops the oldest unread messages of a slow subscription; change its policy if "
        "that is not meant",
    ),
    Demand(
        "messages do not expire unread",
        Severity.NOTE,
        _expires_nothing,
        "the time to live counts expired messages as read; leave it only if that is meant",
    ),
    Demand(
        "exclusive consumers are allowed",
        Severity.WRONG,
        _allows_exclusive,
        "Cleave's consumers could not read; add Exclusive to the namespace's subscription types",
    ),
    Demand(
        "key-shared consumers are allowed",
        Severity.NOTE,
        _allows_key_shared,
        "several consumers could not share one segment by its entry buckets; add Key_Shared to the namespace's "
        "subscription types, and look at subscriptionKeySharedEnable in the brokers' configuration",
    ),
    Demand(
        "batches are acknowledged in part",
        Severity.NOTE,
        _acknowledges_in_part,
        "a batch that a reader leaves in the middle would be delivered whole again, if "
        "acknowledgmentAtBatchIndexLevelEnabled is false in the brokers' configuration; look there where this token may "
        "not",
    ),
    Demand(
        "one cluster only",
        Severity.WRONG,
        lambda seen: len(seen.policies.get("replication_clusters") or ["one"]) == 1,
        "the end of a segment is not replicated to other clusters, so its keys would go on there; use a namespace of "
        "one cluster",
    ),
    *GATE_DEMANDS,
)


def demand_gates(access: PulsarAccess, admin: AdminCalls, namespace: str) -> None:
    """Raise Unsupported if topics of the namespace cannot have gates."""
    if access.service_url is None:
        raise Unsupported(
            f"gates of {namespace} need the brokers' binary address: set CLEAVE_PULSAR_SERVICE_URL"
        )
    seen = _look_at_brokers(admin, namespace_path(namespace), admin.deadline())
    for demand in GATE_DEMANDS:
        if not demand.is_met(seen):
            raise Unsupported(
                f"namespace {namespace} cannot have gates (not so: {demand.name}): {demand.why}"
            )


class Namespaces:
    """Looks at namespaces with the admin's rights, and sets what is asked for."""

    def __init__(self, access: PulsarAccess, *, call_timeout_seconds: float = 5.0) -> None:
        self._admin = AdminCalls(access, call_timeout_seconds=call_timeout_seconds)
        self._encrypts = access.encryption_key is not None

    def check(self, namespace: str, *, fix: bool = False) -> tuple[Unmet, ...]:
        """Demands that are not met; with `fix`, those that Cleave may set are set and marked so.

        Raises NotFound for a namespace that does not exist, and what the broker's refusals are mapped to.
        """
        deadline, path = self._admin.deadline(), namespace_path(namespace)
        seen = _look(self._admin, path, deadline, encrypts=self._encrypts)
        unmet = [Unmet(namespace, demand) for demand in DEMANDS if not demand.is_met(seen)]
        if not fix:
            return tuple(unmet)
        return tuple(self._set(path, one, deadline) for one in unmet)

    def close(self) -> None:
        """Give back connections."""
        self._admin.close()

    def broker_version(self) -> str:
        """The broker's version: `4.2.4`."""
        return str(self._admin.ask(VERSION, self._admin.deadline()).document)

    def _set(self, path: str, one: Unmet, deadline: Deadline) -> Unmet:
        demand = one.demand
        if demand.path is None:
            return one
        act = f"set {demand.path} of namespace {path}"
        self._admin.ask(Ask("POST", f"namespaces/{path}/{demand.path}", act, body=demand.value), deadline)
        return Unmet(one.namespace, demand, set_now=True)


def _look(admin: AdminCalls, path: str, deadline: Deadline, *, encrypts: bool) -> Namespace:
    policies = admin.ask(Ask("GET", f"namespaces/{path}", f"look at namespace {path}"), deadline).document
    return replace(_look_at_brokers(admin, path, deadline), policies=policies, encrypts=encrypts)


def _look_at_brokers(admin: AdminCalls, path: str, deadline: Deadline) -> Namespace:
    """The namespace without its own policies, which take more rights to be seen."""
    runtime = admin.ask(
        Ask(
            "GET",
            "brokers/configuration/runtime",
            "look at the broker's configuration",
            accept=_REFUSES_TO_SHOW,
        ),
        deadline,
    )
    broker = {} if runtime.status in _REFUSES_TO_SHOW else runtime.document
    version = str(admin.ask(VERSION, deadline).document)
    return Namespace({}, broker, version=version, policy_status=_policy_status(admin, path, deadline))


def _policy_status(admin: AdminCalls, path: str, deadline: Deadline) -> int:
    """Status of the answer to a question for the policy of a topic that does not exist. NotFound for a namespace that does not.

    To set a policy takes the rights that it takes to read the policy, and the broker looks at the rights first.
    """
    act = f"ask for a topic's policy in namespace {path}"
    question = f"persistent/{path}/cleave.no-topic/cleave/dispatchRate"
    ask = Ask("GET", question, act, accept={*_REFUSES_TO_SHOW, *GONE, _NO_SUCH_CALL})
    try:
        answer = admin.ask(ask, deadline)
    except UnknownAddress:
        return _NO_SUCH_CALL
    reason = str(answer.document["reason"]) if answer.status in GONE else "topic"
    if not reason.lower().startswith("topic"):
        raise refusal(act, answer.status, reason)
    return answer.status
